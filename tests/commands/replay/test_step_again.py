"""Steps that are taken again come out equal, bit by bit."""

import json
import math
from pathlib import Path

import cv2
import pytest
import torch
from torch import nn

from framework.commands.replay import step_again, watched_steps
from framework.errors import ConfigError, DataError
from framework.system.run_dir import read_json, write_object
from framework.train.checkpoint import save_state
from tests.cli.command import paceline
from tests.commands.replay.replayed_runs import SMALL, check_steps, known_run, losses_of, replayed
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


def test_a_step_in_phases_is_repeated(tmp_path):
    words = ["objective=null", "+objective._target_=tests.train.phased.InTurn", "accumulate=2"]
    words += ["optim.parts={body: {match: features}, head: {match: head}}", "workers.num=0"]
    known = known_run(tmp_path, *words, "allow_targets=[tests]", "data.val=null")
    own = step_again.RunAgain(known.path, "6", ("tests.",)).take()[0]
    assert losses_of(own) == {step: known.losses[step] for step in (5, 6, 7)}
    assert own["means"]["loss"] == pytest.approx(own["means"]["body"] + own["means"]["head"])
    assert not own["differing_reports"]
    assert {"features.0.0", "head"} <= own["gradients"].keys()


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


def test_a_layer_is_a_module_with_parameters_of_its_own():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 1)))
    model(torch.ones(1, 2)).sum().backward()
    norms = watched_steps.gradient_norms(model, scale=2.0)
    assert list(norms) == ["0", "2.0"]
    own = [part.grad.flatten() for part in model[0].parameters()]
    assert norms["0"] == pytest.approx(float(torch.cat(own).norm()) / 2)


def history(*reports, last_step=20, diverged=False):
    return step_again.RunHistory(Path("run"), {}, {}, reports, last_step, diverged)


REPORTS = (
    step_again.LoggedReport(1, 5, {"loss": 2.0, "accuracy": 0.1}, 0),
    step_again.LoggedReport(6, 10, {"loss": 3.0, "accuracy": 0.3}, 0),
    step_again.LoggedReport(11, 20, {"loss": 1.0, "accuracy": 0.2}, 1),
)


@pytest.mark.parametrize(
    ("text", "first"), [("max:loss", 6), ("min:loss", 11), ("min:accuracy", 1), ("nan", 11)]
)
def test_the_worst_report_is_searched(text, first):
    assert step_again.choose_step(text, history(*REPORTS)).first == first


def test_a_mean_that_is_no_number_is_the_worst():
    bad = step_again.LoggedReport(21, 25, {"loss": math.nan}, 0)
    assert step_again.choose_step("min:loss", history(*REPORTS, bad)).first == 21


def test_a_run_that_diverged_is_searched_after_its_last_report():
    search = step_again.choose_step("nan", history(*REPORTS[:2], last_step=12, diverged=True))
    assert search == step_again.StepSearch(11, 13)


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 340), ("worst", 340), ("max:", 340), ("21", 341), ("max:los", 342), ("nan", 343)],
)
def test_a_text_that_names_no_step_is_refused(text, number):
    with pytest.raises(ConfigError, match=f"C{number}"):
        step_again.choose_step(text, history(*REPORTS[:2]))


def line(step, split="train", **more):
    values = {"step": step, "epoch": 1, "split": split, "loss": 1.5 / step, "lr": 0.1}
    return json.dumps({**values, **more}) + "\n"


def test_reports_cover_the_steps_since_the_one_before(tmp_path):
    text = line(5) + line(5, "val") + "damaged\n" + line(8, skipped=2)
    (tmp_path / "metrics.jsonl").write_text(text)
    expected = [
        step_again.LoggedReport(1, 5, {"loss": 0.3}, 0),
        step_again.LoggedReport(6, 8, {"loss": 1.5 / 8}, 2),
    ]
    assert step_again.read_history(tmp_path).reports == expected


def test_the_last_step_is_the_last_that_any_file_knows(tmp_path):
    assert step_again.read_history(tmp_path).last_step == 0
    (tmp_path / "metrics.jsonl").write_text(line(5))
    write_object(tmp_path / "exit.json", {"code": 6, "step": 7})
    history = step_again.read_history(tmp_path)
    assert (history.last_step, history.diverged) == (7, True)


def test_states_are_known_by_their_steps_without_those_that_a_resume_left_behind(tmp_path):
    for sequence, step in enumerate((4, 8, 6), 1):
        save_state(tmp_path / "checkpoints" / f"step-{step:08}.pt", {"step": step}, step, sequence)
    (tmp_path / "checkpoints" / "step-00000009.pt").write_bytes(b"no state")
    assert sorted(step_again.read_history(tmp_path).states) == [4, 6]


NEIGHBOR = {"step": 6, "means": {"loss": 1.0}, "gradients": {"stem": 1.0, "<b>": 1.0}}
RECORDS = [
    {"index": 3, "key": "a\x1b[2J", "class": "cat", "loss": math.nan, "place": 1},
    *({"index": n, "key": "", "class": None, "loss": 1.0, "place": n} for n in range(2, 30)),
]


@pytest.fixture
def summary():
    step = {"run": "<script>", "step": 7, "epoch": 2, "learning_rate": 0.1, "updated": False}
    step |= {"means": {"loss": math.nan}, "gradients": {"stem": 2.0, "<b>": math.nan}}
    step |= {"search": {"first": 1, "last": 10}, "ended": "error[N101]: step 10", "wall_s": 2.0}
    step |= {"from_state": None, "repeated_reports": [], "differing_reports": [5]}
    return {**step, "neighbors": [NEIGHBOR], "records": [dict(record) for record in RECORDS]}


def test_the_files_show_records_in_their_order(tmp_path, summary):
    images = torch.arange(30 * 12.0).reshape(30, 3, 2, 2)
    step_again.show_replay(
        summary, [watched_steps.WatchedPass({"index": torch.arange(30), "image": images})], tmp_path
    )
    folder = tmp_path / "replay" / "step_7"
    assert json.loads((folder / "replay.json").read_text())["records"][0]["index"] == 3
    assert cv2.imread(str(folder / "batch.png")).shape[2] == 3


def test_the_terminal_shows_the_step_the_search_and_the_differences(summary, capsys):
    step_again.print_replay(summary)
    text = capsys.readouterr().out
    assert "step 7 of epoch 2: loss nan, learning rate 0.1, and the step was skipped" in text
    assert "found among steps 1 to 10" in text
    assert "NOT as the run took it: the report of step 5 differs" in text
    assert "then the run ended: error[N101]" in text
    assert "the 20 of 29 records with the highest loss" in text
    assert "\x1b[2J" not in text


def test_the_layers_that_grew_most_stay(summary):
    rows = step_again.gradient_rows(summary, most=1)
    assert [row[0] for row in rows] == ["loss", "all layers", "<b>"]
    assert rows[2] == ["<b>", "1", "nan"]
    assert len(step_again.gradient_rows(summary)) == 4


def test_floats_are_stretched_by_channel_and_what_is_not_finite_is_black():
    images = torch.zeros(2, 1, 2, 2)
    images[0, 0] = torch.tensor([[-1.0, 0.0], [1.0, math.nan]])
    assert step_again.as_pixels(images)[0, 0].tolist() == [[0, 128], [255, 0]]
    assert not step_again.as_pixels(torch.full((1, 3, 2, 2), math.nan)).any()
