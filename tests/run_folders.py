"""Run directories as runs leave them, made without training."""

import os
import time

from framework.system.run_dir import write_object


def make_run(
    path,
    status="finished",
    code=0,
    metrics=None,
    overrides=(),
    config=None,
    started="2026-11-25T03:00:00+0000",
):
    """Write a run directory and return its path. With ``code`` None, its end is not recorded."""
    (path / "checkpoints").mkdir(parents=True)
    (path / "checkpoints" / "last.pt").write_bytes(b"x" * 5000)
    write_object(path / "run.json", {"started": started, "overrides": list(overrides)})
    write_object(path / "resolved.json", config or {})
    (path / "metrics.jsonl").write_text("")
    if code is not None:
        write_object(path / "exit.json", {"code": code, "reason": "why", "step": 7})
    if code == 0:
        best = {**(metrics or {"accuracy": 0.5}), "step": 7}
        summary = {"status": status, "steps": 8, "wall_s": 2.5, "best": best, "val": best}
        write_object(path / "summary.json", summary)
    return path


def age(path, seconds):
    """Let a run have written nothing for so long."""
    then = time.time() - seconds
    for file in (*path.iterdir(), *path.glob("checkpoints/*")):
        os.utime(file, (then, then), follow_symlinks=False)
