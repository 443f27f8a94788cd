"""What a run's directory says about its steps."""

import json

from framework.commands.replay.run_history import Attempt, read_history
from framework.system.run_dir import write_object
from framework.train.checkpoint import save_state


def line(step, split="train", **more):
    values = {"step": step, "epoch": 1, "split": split, "loss": 1.5 / step, "lr": 0.1}
    return json.dumps({**values, **more}) + "\n"


def test_reports_cover_the_steps_since_the_one_before(tmp_path):
    text = line(5) + line(5, "val") + "damaged\n" + line(8, skipped=2)
    (tmp_path / "metrics.jsonl").write_text(text)
    first, second = read_history(tmp_path).reports
    assert (first.first, first.last, second.first, second.last) == (1, 5, 6, 8)
    assert first.means == {"loss": 0.3}
    assert second.skipped == 2


def test_the_last_step_is_the_last_that_any_file_knows(tmp_path):
    assert read_history(tmp_path).last_step == 0
    (tmp_path / "metrics.jsonl").write_text(line(5))
    write_object(tmp_path / "exit.json", {"code": 6, "step": 7})
    history = read_history(tmp_path)
    assert history.last_step == 7
    assert history.diverged


def test_states_are_known_by_their_steps_without_those_that_a_resume_left_behind(tmp_path):
    for sequence, step in enumerate((4, 8, 6), 1):
        save_state(tmp_path / "checkpoints" / f"step-{step:08}.pt", {"step": step}, step, sequence)
    (tmp_path / "checkpoints" / "step-00000009.pt").write_bytes(b"no state")
    history = read_history(tmp_path)
    assert list(history.states) == [4, 6]
    assert history.damaged == ("step-00000009.pt",)


def test_a_resumed_run_has_parts(tmp_path):
    parts = [
        {"step": 0, "config": "resolved.json", "ranks": 2},
        {"step": 5, "config": "resolved.1.json"},
    ]
    write_object(tmp_path / "run.json", {"starts": parts})
    history = read_history(tmp_path)
    assert history.attempt_at(4) == Attempt(0, "resolved.json", 2)
    assert history.attempt_at(5) == Attempt(5, "resolved.1.json", None)
