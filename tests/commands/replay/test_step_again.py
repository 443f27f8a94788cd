"""Steps that are taken again come out equal, bit by bit."""

import json

import pytest

from framework.errors import ConfigError, DataError
from framework.system.run_dir import read_json, write_object
from tests.cli.command import paceline
from tests.commands.replay.replayed_runs import (
    SMALL,
    check_steps,
    known_run,
    losses_of,
    replayed,
)
from tests.saved_runs import change


@pytest.mark.parametrize(
    "words",
    [
        ["loader=plain", "workers.num=0"],
        ["loader=prefetch", "workers.num=2", "augment=crop_flip", "model=dropped"],
        ["loader=stream", "workers.num=2", "workers.kind=process", "accumulate=2"],
        ["precision=amp", "precision.dtype=bf16", "clip_norm=0.5", "model=dropped"],
        ["precision=amp", "precision.dtype=fp16", "ema_decay=0.9", "ema_lookahead=true"],
        ["schedule=plateau", "schedule.patience=0", "validate_every=2", "optim=adamw"],
        ["data=lmdb", "order.block_records=10", "last=wrap", "freeze={features: 6}"],
        ["parallel=dp", "accumulate=2", "on_nan=skip"],
    ],
    ids=" ".join,
)
@pytest.mark.slow
def test_a_hundred_random_steps_have_equal_bits(tmp_path, words):
    write_dropped(tmp_path)
    check_steps(known_run(tmp_path, "--config-dir", ".", *words), 13)


def write_dropped(folder):
    """Write a model that draws random numbers, as a choice for ``--config-dir``."""
    (folder / "model").mkdir()
    (folder / "model" / "dropped.yaml").write_text(
        "# one layer, and dropout\n_target_: torch.nn.Sequential\n_args_:\n"
        "  - {_target_: torch.nn.Flatten}\n  - {_target_: torch.nn.Dropout, p: 0.3}\n"
        "  - {_target_: torch.nn.Linear, in_features: 64, out_features: 10}\n"
    )


def test_a_step_and_its_neighbors_are_those_of_the_run(tmp_path):
    known = known_run(tmp_path, "workers.num=0")
    own = replayed(known.path, 6)
    assert losses_of(own) == {step: known.losses[step] for step in (5, 6, 7)}
    assert own["from_state"] == "step-00000004.pt"
    assert own["repeated_reports"] == [5, 6, 7]
    assert all(record["class"] in list("0123456789") for record in own["records"])
    (known.path / "checkpoints" / "step-00000004.pt").unlink()
    later = replayed(known.path, 10)  # the step before it would have to come from the start
    assert losses_of(later) == {step: known.losses[step] for step in (10, 11)}
    assert later["from_step"] == 9


def test_a_state_that_is_damaged_gives_way_to_an_older_one(tmp_path):
    known = known_run(tmp_path, "workers.num=0")
    path = known.path / "checkpoints" / "step-00000009.pt"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    assert replayed(known.path, 11)["from_step"] == 4


def test_a_resumed_run_is_repeated_with_the_configuration_that_took_the_step(tmp_path):
    known_run(tmp_path, "workers.num=0", "epochs=1")  # keeps the state of step 4
    words = ["resume=run", "epochs=3", "report_every=1", "loader=plain"]
    assert paceline("train", *words, cwd=tmp_path).code == 0
    for path in (tmp_path / "run" / "checkpoints").glob("step-*.pt"):
        path.unlink()
    own = replayed(tmp_path / "run", 11)
    assert own["from_step"] == 0
    assert own["repeated_reports"] == list(range(1, 13))
    assert not own["differing_reports"]


def test_a_replay_that_ends_before_the_step_says_so(tmp_path):
    known = known_run(tmp_path, "workers.num=0", "report_every=5", "schedule=constant")
    for path in (known.path / "checkpoints").glob("step-*.pt"):
        path.unlink()
    optim = read_json(known.path / "resolved.json")["optim"]
    # As if this machine computed other bits.
    change(known.path / "resolved.json", optim={**optim, "lr": 1e18})
    lines = [json.loads(line) for line in (known.path / "metrics.jsonl").read_text().splitlines()]
    reports = [line for line in lines if line["split"] == "train"]
    reports[1]["loss"] = 99.0
    text = "".join(f"{json.dumps(line)}\n" for line in reports[:2])
    (known.path / "metrics.jsonl").write_text(text)
    write_object(known.path / "exit.json", {"code": 6})
    for step in ("10", "max:loss", "nan"):
        with pytest.raises(ConfigError, match=r"C343.*ended before it, after step \d+ \(.*N101"):
            replayed(known.path, step)


def test_the_worst_step_is_found_within_a_report(tmp_path):
    known = known_run(tmp_path, "workers.num=0")
    done = paceline("train", *SMALL, "report_every=5", "workers.num=0", "hydra.run.dir=coarse")
    assert done.code == 0
    reports = [sum(known.losses[step] for step in range(first, first + 5)) for first in (1, 6, 11)]
    first = 1 + 5 * reports.index(min(reports))
    result = replayed(tmp_path / "coarse", "min:loss")
    assert result["step"] == min(range(first, first + 5), key=lambda step: known.losses[step])
    assert result["search"]["first"] == first


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_the_first_step_that_is_not_finite_is_found(tmp_path, on_nan):
    words = ["workers.num=0", "optim.lr=1e18", "schedule=constant", f"on_nan={on_nan}"]
    words += ["max_skips=100"] if on_nan == "skip" else []
    known = known_run(tmp_path, *words, "report_every=4")
    own = replayed(known.path, "nan")
    assert not own["finite"]
    before = [near for near in own["neighbors"] if near["step"] < own["step"]]
    assert before
    assert all(near["finite"] for near in before)
    assert own["updated"] == (on_nan == "stop")


def test_a_step_that_ends_the_run_is_found_after_a_resume(tmp_path):
    known_run(tmp_path, "workers.num=0", "epochs=1")
    words = ["epochs=3", "optim.lr=1e18", "schedule=constant", "resume.allow=[optim,schedule]"]
    done = paceline("train", "resume=run", *words, cwd=tmp_path)
    assert done.code == 6, done.err
    for path in (tmp_path / "run" / "checkpoints").glob("step-*.pt"):
        path.unlink()
    own = replayed(tmp_path / "run", "nan")
    assert (own["step"] > 5, own["finite"], own["from_step"]) == (True, False, 0)


def test_a_store_that_has_changed_is_refused(tmp_path):
    known = known_run(tmp_path, "workers.num=0")
    (tmp_path / "digits" / "train.h5").write_bytes((tmp_path / "digits" / "val.h5").read_bytes())
    with pytest.raises(DataError, match="D340"):
        replayed(known.path, 6)
