import pytest

from framework.commands.report.read_run import read_run
from framework.system.run_dir import read_json, write_object
from tests.commands.report.runs import SPANS_S, make_run
from tests.saved_runs import change, write_signed


def test_a_finished_run_is_read_whole(tmp_path):
    run = read_run(make_run(tmp_path / "a", ("data=hdf5", "workers.num=2"), notes=("a note",)))
    assert (run.status, run.name, run.choices) == (
        "finished",
        "a",
        {"data": "hdf5", "workers.num": "2"},
    )
    assert run.spans["forward"].p90_s == pytest.approx(SPANS_S["forward"] * 1.4)
    assert run.records_per_s == pytest.approx(128 / 8.1e-3)
    assert set(run.val) == {"loss", "accuracy"}
    assert run.resources["stages_s.decode"] == 0.9
    assert run.notes == ("a note",)


@pytest.mark.parametrize(
    ("code", "status"),
    [(6, "failed"), (1, "failed"), (130, "interrupted"), (75, "interrupted"), (143, "interrupted")],
)
def test_the_exit_code_says_how_it_ended(tmp_path, code, status):
    run = read_run(make_run(tmp_path / "a", code=code, reason="error[N101]: the loss is nan"))
    assert (run.status, run.reason) == (status, "error[N101]: the loss is nan")
    assert run.spans["wait"].mean_s == pytest.approx(SPANS_S["wait"])  # from the log
    assert run.val["loss"] > 0


def test_a_run_that_was_killed_is_unfinished(tmp_path):
    path = make_run(tmp_path / "a", code=None)
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"step": 44, "epoch"')
    run = read_run(path)
    assert run.status == "unfinished"
    assert any("1 lines" in note for note in run.notes)
    assert run.figures["steps"] == 40


def test_of_a_resumed_run_the_newest_configuration_counts(tmp_path):
    path = make_run(tmp_path / "a", config={"epochs": 1})
    for name, epochs in (("2", 2), ("10", 10), ("x", 11)):
        write_object(path / f"resolved.{name}.json", {"epochs": epochs})
    assert read_run(path).config == {"epochs": 10}


JUNK = [
    "",
    "{",
    "[]",
    "null",
    '"x"',
    "{}",
    (
        '{"spans": 3, "val": [], "best": "x", "spans_s": {"wait": "long"}, "notes": 5, '
        '"records_per_s": "fast"}'
    ),
]


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize(
    "name", ["run.json", "summary.json", "exit.json", "resolved.json", "metrics.jsonl"]
)
def test_whatever_a_file_holds_the_run_is_read(tmp_path, name, junk):
    path = make_run(tmp_path / "a")
    write_signed(path / name, junk)
    assert read_run(path).status in {"finished", "unfinished"}


def test_a_device_that_idles_is_distinguished_from_a_host_that_waits(tmp_path):
    path = make_run(tmp_path / "a")
    spans = read_json(path / "summary.json")["spans"]
    change(path / "summary.json", spans={**spans, "idle": {"mean_s": 0.5}})
    run = read_run(path)
    assert list(run.spans) == ["idle", "copy", "forward", "backward", "optimizer", "report"]
    assert run.beside["wait"].mean_s == pytest.approx(SPANS_S["wait"])


LATE = {
    "rank": 1,
    "span": "forward",
    "steps_share": 0.98,
    "late_s": 0.0309,
    "lost_share": 0.56,
    "uncertainty_s": 0.0,
}
SPAN = {"min_s": 0.001, "median_s": 0.002, "max_s": 0.033, "rank": 1}
RANKS = {"num": 2, "spans": {"forward": SPAN}, "late": LATE}


def with_ranks(folder, ranks):
    path = make_run(folder)
    change(path / "summary.json", ranks=ranks)
    return read_run(path)


@pytest.mark.parametrize(
    "ranks",
    [
        3,
        {"num": 2},
        {**RANKS, "num": "two"},
        {**RANKS, "spans": {"forward": {**SPAN, "rank": float("nan")}}},
        {**RANKS, "spans": {"forward": {"min_s": 1.0}}},
        {**RANKS, "spans": [1]},
    ],
)
def test_damaged_figures_of_ranks_are_left_out(tmp_path, ranks):
    assert with_ranks(tmp_path / "a", ranks).ranks is None
