"""Compare the forecasts of ``paceline plan`` with what runs then take.

    python benchmarks/plan.py [folder] [case,case]

Four set-ups are forecast and run: one rank, two ranks, a store on a disk that a control group
throttles, and a host that a control group limits to one core. The last two need root and control
groups of version 1. Forecasts and runs come in turn, and their medians are compared. Other programs
spoil the figures.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

GROUPS = Path("/sys/fs/cgroup")
RECORDS = 4096
SIDE = 96
DISK = 5_000_000  # bytes per second
ROUNDS = 3
SECONDS = 10
LINEAR = """# one layer
_target_: torch.nn.Sequential
_args_:
  - {_target_: torch.nn.Flatten}
  - {_target_: torch.nn.Linear, in_features: 27648, out_features: 10}
"""

Figures = dict[str, tuple[float, float]]  # forecast and measured, by unit


def paceline(*words: str, prepare: Callable[[], None] | None = None) -> None:
    """Run a command, and show its error if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "framework", *words],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=prepare,
    )
    if done.returncode:
        raise SystemExit(done.stderr)


def forecast(words: Sequence[str], *host: str) -> dict[str, Any]:
    """Return the forecast for a host."""
    paceline("plan", *words, *host, f"seconds={SECONDS}", "output=plan.json")
    return json.loads(Path("plan.json").read_text())["forecast"]


def run(
    words: Sequence[str], name: str, prepare: Callable[[], None] | None = None
) -> tuple[float, float]:
    """Train, and return the seconds of a step and the bytes of memory."""
    name = f"{name}-{os.getpid()}"
    paceline("train", *words, f"hydra.run.dir={name}", "sink=[jsonl]", prepare=prepare)
    summary = json.loads(Path(name, "summary.json").read_text())
    lines = map(json.loads, Path(name, "metrics.jsonl").read_text().splitlines())
    rates = [line["records_per_s"] for line in lines if line["split"] == "train"][1:]
    step_s = summary["effective"]["batch_size"] / median(rates)
    return step_s, summary["usage"]["peak_tree_rss_bytes"]


def epoch_s(words: Sequence[str], name: str, prepare: Callable[[], None]) -> float:
    """Train for an epoch, and return the seconds of all its steps."""
    name = f"{name}-{os.getpid()}"
    paceline("train", *words, f"hydra.run.dir={name}", "sink=[jsonl]", prepare=prepare)
    return json.loads(Path(name, "summary.json").read_text())["train_s"]


@contextmanager
def control_group(controller: str, **limits: str) -> Generator[Callable[[], None]]:
    """Yield a function that moves the calling process into a new control group."""
    group = GROUPS / controller / f"paceline-plan-{os.getpid()}"
    group.mkdir()
    try:
        for name, value in limits.items():
            (group / f"{controller}.{name.replace('__', '.')}").write_text(value)

        def join() -> None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

        yield join
    finally:
        with suppress(OSError):
            group.rmdir()


def on_cores(count: int) -> Callable[[], None]:
    cores = sorted(os.sched_getaffinity(0))[:count]
    return partial(os.sched_setaffinity, 0, cores)


def uncache(path: str) -> None:
    """Drop a file from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def ranks(count: int, number: int) -> Figures:
    """Forecast and run one host with a core for each of its ranks."""
    words = ["batch_size=128"]
    plan = forecast(words, f"ranks_per_host={count}", f"cores={count}")
    choice = ["parallel=none"]
    if count > 1:
        choice = ["parallel=ddp", f"parallel.num_processes={count}"]
    steps = [*words, *choice, "report_every=5", "epochs=15"]
    step_s, memory = run(steps, f"ranks-{count}-{number}", on_cores(count))
    return {
        "ms a step": (1e3 * plan["step_s"], 1e3 * step_s),
        "MB a rank": (plan["memory_bytes"] / count / 1e6, memory / 1e6),
    }


def throttled(number: int) -> Figures:
    """Forecast and run an epoch on a store that is not cached, from a disk of a known rate."""
    words = ["--config-dir", ".", "model=linear", "data.train=large.h5", "data.val=small.h5"]
    words += ["batch_size=64", "epochs=1"]
    plan = forecast(words, "cores=1", f"disk={DISK}")
    device = os.stat("large.h5").st_dev
    limit = f"{os.major(device)}:{os.minor(device)} {DISK}"
    with control_group("blkio", throttle__read_bps_device=limit) as join:

        def prepare() -> None:
            join()
            on_cores(1)()

        uncache("large.h5")
        took_s = epoch_s([*words, "verify=off"], f"throttled-{number}", prepare)
    return {"s an epoch": (plan["train_s"], took_s)}


def limited(number: int) -> Figures:
    """Forecast and run a host whose control group has one core, on a machine with more."""
    words = ["batch_size=128"]
    plan = forecast(words, "cores=1")
    with control_group("cpu", cfs_period_us="100000", cfs_quota_us="100000") as join:
        step_s, _ = run([*words, "report_every=5", "epochs=15"], f"limited-{number}", join)
    return {"ms a step": (1e3 * plan["step_s"], 1e3 * step_s)}


CASES: dict[str, Callable[[int], Figures]] = {
    "one rank": partial(ranks, 1),
    "two ranks": partial(ranks, 2),
    "throttled disk": throttled,
    "quota of one core": limited,
}


def write_stores() -> None:
    Path("model").mkdir(exist_ok=True)
    Path("model", "linear.yaml").write_text(LINEAR)
    random = np.random.default_rng(0)
    for name, count in (("large", RECORDS), ("small", 64)):
        images = random.integers(0, 255, (count, 3, SIDE, SIDE), dtype=np.uint8)
        np.savez(f"{name}.npz", image=images, label=np.arange(count) % 10)
        paceline("pack", "input=arrays", f"input.path={name}.npz", f"output.path={name}.h5")


def main() -> None:
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="paceline-plan-")
    names = sys.argv[2].split(",") if len(sys.argv) > 2 else list(CASES)
    os.chdir(folder)
    if not Path("large.h5").exists():
        write_stores()
    for name in names:
        rounds = [CASES[name](number) for number in range(ROUNDS)]
        for unit in rounds[0]:
            forecasts, measured = zip(*(figures[unit] for figures in rounds), strict=True)
            off = 100 * (median(forecasts) / median(measured) - 1)
            figures = f"forecast {median(forecasts):8.2f}, measured {median(measured):8.2f} {unit}"
            print(f"{name:18} {figures}, off by {off:+.0f} %", flush=True)


if __name__ == "__main__":
    main()
