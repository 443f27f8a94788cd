import json
from pathlib import Path

import pytest

from framework.commands.report import recorded_runs
from framework.commands.report.recorded_runs import find_runs, is_bench, read_bench, read_run
from framework.errors import DataError
from framework.system.run_dir import read_json
from tests import run_folders, saved_runs
from tests.commands.report import runs as module


def test_a_finished_run_is_read_whole(tmp_path):
    run = read_run(
        module.make_run(tmp_path / "a", ("data=hdf5", "workers.num=2"), notes=("a note",))
    )
    assert (run.status, run.name) == ("finished", "a")
    assert run.command == "paceline train data=hdf5 workers.num=2"
    assert run.choices == {"data": "hdf5", "workers.num": "2"}
    assert run.spans["forward"].p90_s == pytest.approx(module.SPANS_S["forward"] * 1.4)
    assert run.records_per_s == pytest.approx(128 / 8.1e-3)
    assert set(run.val) == {"loss", "accuracy"}
    assert run.resources["stages_s.decode"] == 0.9
    assert run.notes == ["a note"]


def test_a_run_that_failed_has_the_figures_of_its_log(tmp_path):
    run = read_run(module.make_run(tmp_path / "a", code=6, reason="error[N101]: the loss is nan"))
    assert (run.status, run.reason) == ("failed", "error[N101]: the loss is nan")
    assert run.spans["wait"].mean_s == pytest.approx(module.SPANS_S["wait"])  # from the log
    assert run.val["loss"] > 0


def test_a_run_without_an_end_is_running_or_was_killed(tmp_path):
    path = module.make_run(tmp_path / "a", code=None)
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"step": 44, "epoch"')
    run = read_run(path)
    assert run.status == "running"
    run_folders.age(path, 7200)
    assert read_run(path).status == "killed"
    assert any("1 lines" in note for note in run.notes)
    assert run.figures["steps"] == 40


def test_a_run_without_a_log_has_the_steps_of_its_summary(tmp_path):
    path = module.make_run(tmp_path / "a")
    (path / "metrics.jsonl").unlink()
    assert read_run(path).figures["steps"] == 40


@pytest.mark.parametrize("junk", ["", "{", "[]", '"x"', "{}"])
@pytest.mark.parametrize(
    "name", ["run.json", "summary.json", "exit.json", "resolved.json", "metrics.jsonl"]
)
def test_a_run_with_a_damaged_file_is_read_without_it(tmp_path, name, junk):
    path = module.make_run(tmp_path / "a")
    saved_runs.write_signed(path / name, junk)
    assert read_run(path).status in {"finished", "damaged"}


def test_a_run_of_another_shape_is_left_out_of_a_sweep_and_refused_alone(tmp_path, capsys):
    module.make_run(tmp_path / "good")
    saved_runs.change(module.make_run(tmp_path / "bad") / "summary.json", spans=3)
    assert [run.name for run in find_runs([str(tmp_path)])] == ["good"]
    assert "bad is left out: error[D178]" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"D178.*is damaged \(AttributeError"):
        find_runs([str(tmp_path / "bad")])


def test_a_device_that_idles_is_distinguished_from_a_host_that_waits(tmp_path):
    path = module.make_run(tmp_path / "a")
    spans = read_json(path / "summary.json")["spans"]
    idle = {"mean_s": 0.5, "p50_s": 0.5, "p90_s": 0.5}
    saved_runs.change(path / "summary.json", spans={**spans, "idle": idle})
    run = read_run(path)
    assert list(run.spans) == ["idle", "copy", "forward", "backward", "optimizer", "report"]
    assert run.overlapped["wait"].mean_s == pytest.approx(module.SPANS_S["wait"])


def written(tmp_path, lines):
    path = tmp_path / "metrics.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines]
    path.write_text("".join(texts))
    return path


def test_curves_have_every_report_with_its_step_and_seconds(tmp_path):
    metrics = recorded_runs.read_metrics(written(tmp_path, module.lines_of()))
    curve = metrics.curves["train", "loss"]
    assert curve.steps.tolist() == list(range(4, 41, 4))
    assert curve.seconds == pytest.approx(curve.steps * sum(module.SPANS_S.values()))
    assert metrics.curves["val", "accuracy"].steps.tolist() == [20, 40]
    both = {(split, name) for split in ("train", "val") for name in ("loss", "accuracy")}
    assert set(metrics.curves) == both


def test_where_a_device_idles_the_host_s_wait_is_no_time_of_its_own(tmp_path):
    lines = [{**module.line_of(10), "wait_s": 5.0, "forward_s": 0.2, "idle_s": 0.1}]
    curve = recorded_runs.read_metrics(written(tmp_path, lines)).curves["train", "loss"]
    assert curve.seconds == pytest.approx([3.0])


@pytest.mark.parametrize(
    "bad",
    ["[1]\n", '{"step": "a", "split": "train"}\n', '{"split": "val"}\n', "[" * 9999 + "\n"],
    ids=["list", "text", "no step", "deep"],
)
def test_lines_that_are_none_are_left_out_and_counted(tmp_path, bad):
    metrics = recorded_runs.read_metrics(written(tmp_path, [bad, *module.lines_of()]))
    assert metrics.num_bad == 1
    assert len(metrics.curves["train", "loss"].steps) == 10


def test_repeats_of_a_cell_are_one_run_with_their_median(tmp_path):
    lines = [
        module.cell(rate, repeat, data="hdf5") for repeat, rate in enumerate((100.0, 90.0, 130.0))
    ]
    (run,) = read_bench(module.make_bench(tmp_path / "b.jsonl", lines))
    assert (run.records_per_s, run.status, run.choices) == (100.0, "finished", {"data": "hdf5"})
    assert run.spans["wait"].mean_s == pytest.approx(module.SPANS_S["wait"])
    assert len(run.rates) == 24  # windows, as there are too few repeats for quartiles
    assert run.facts["machine.processor"] == module.MACHINE["processor"]


def test_cells_that_cannot_be_or_failed_say_why(tmp_path):
    illegal = {"cell": {"data": "b"}, "illegal": "no CUDA"}
    lines = [module.cell(100.0, data="a"), illegal, {"cell": {"data": "c"}, "repeat": 0}]
    runs = read_bench(module.make_bench(tmp_path / "b.jsonl", lines, [{"data": "z"}]))
    assert [(run.status, run.reason) for run in runs] == [
        ("unfinished", "not measured: the bench was stopped, or is running"),
        ("finished", ""),
        ("impossible", "no CUDA"),
        ("failed", "no rate is recorded"),
    ]


@pytest.mark.parametrize("text", ["", "not json", '{"step": 1, "split": "train"}', "[1]", "3"])
def test_what_does_not_begin_as_a_bench_is_none(tmp_path, text):
    (tmp_path / "x.jsonl").write_text(text + "\n")
    assert not is_bench(tmp_path / "x.jsonl")
    assert is_bench(module.make_bench(tmp_path / "b.jsonl", []))


def test_runs_are_found_below_dates_and_each_once(tmp_path):
    module.make_run(tmp_path / "outputs" / "2026-11-20" / "a")
    last = module.make_run(tmp_path / "outputs" / "2026-11-21" / "b")
    module.make_run(last / "checkpoints" / "inner")
    (tmp_path / "outputs" / "loop").symlink_to(tmp_path)
    all_of_them = str(tmp_path / "outputs")
    assert [run.name for run in find_runs([str(last), all_of_them, all_of_them])] == ["b", "a"]


def test_bench_files_and_runs_are_found_in_one_folder(tmp_path):
    module.make_run(tmp_path / "a")
    module.make_bench(tmp_path / "bench.jsonl", [module.cell(100.0, data="x")])
    (tmp_path / "other.jsonl").write_text("{}\n")
    assert [run.kind for run in find_runs([str(tmp_path)])] == ["run", "cell"]


@pytest.mark.parametrize(
    ("name", "number"),
    [("absent", 175), ("a" * 300, 175), ("empty", 176), ("file.txt", 177), ("bench.jsonl", 176)],
)
def test_a_place_without_runs_is_refused(tmp_path, name, number):
    Path("empty").mkdir()
    Path("file.txt").write_text("x")
    module.make_bench(Path("bench.jsonl"), [])
    with pytest.raises(DataError) as raised:
        find_runs([name])
    assert raised.value.args[0] == number
