"""One tiny real run on the digits, in this process, and everything it leaves."""

import json
import random
import subprocess
import threading
from pathlib import Path

import pytest
import torch
from hydra import compose

from framework.cli.hydra_session import hydra_session, resolved
from framework.config import schema as settings
from framework.config.prepare_data import prepare
from framework.contracts.span import SPANS
from framework.data import source as data_source
from framework.errors import ConfigError
from framework.loader.tuner import Decision, ReadPlan
from framework.pack.pack_store import pack
from framework.run import choices, facts, run
from framework.system.run_dir import read_json, write_object
from framework.train.checkpoint import newest_state
from tests.fakes import Reads

TYPES = {
    str: "status reason",
    int: "steps run_steps epochs skipped_steps peak_rss_bytes records_per_epoch",
    float: "wall_s records_per_s train_s validate_s",
    dict: "val best test test_data recompute spans "
    "choices stages_s queue usage content slow_records tuning effective",
    list: "notes bests",
    type(None): "ranks",  # one rank
}
SUMMARY = {name: kind for kind, names in TYPES.items() for name in names.split()}
FILES = {
    *("metrics.jsonl", "run.json", "summary.json", "checkpoints/step-00000006.pt"),
    *("checkpoints/step-00000003.pt", "checkpoints/last.pt", "checkpoints/best.pt"),
}


def make_config(dataset, *overrides):
    """Return the plain configuration of ``paceline train`` on a few digits and these overrides."""
    few = [
        *("model.width=4", "batch_size=32", "limit=96", "epochs=2", "report_every=2"),
        "augment.mean=[0.25]",
    ]
    with hydra_session("train"):
        words = ["recipes=digits", f'dataset="{dataset}"', *few, *overrides]
        config = resolved(compose("train", words))
    settings.check(config)
    return config


def say_nothing(_):
    pass


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Pack the digits once, as the recipe says, and return their folder."""
    folder = tmp_path_factory.mktemp("digits")
    prepare(make_config(folder), (), pack, print)
    return folder


@pytest.fixture(autouse=True)
def threads():
    """Restore the number of threads after a test, because a run sets it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def trained(dataset, run_dir, *overrides, stop=lambda: False, say=say_nothing):
    run_dir.mkdir(exist_ok=True)
    return run(make_config(dataset, *overrides), run_dir, (), stop, say)


@pytest.fixture(scope="module")
def run_dir(dataset, tmp_path_factory):
    """Finish a run, and return its folder. Tests read what it left."""
    folder = tmp_path_factory.mktemp("run")
    trained(dataset, folder)
    return folder


def lines(run_dir, split):
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in records if line["split"] == split]


# -------------------------------------------------------------------------------------------- files


def test_it_leaves_these_files_and_no_others(run_dir):
    files = {str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if path.is_file()}
    events = {name for name in files if name.startswith("tensorboard/events.out.tfevents.")}
    assert files - events == FILES
    assert len(events) == 2  # curves, and hyperparameters


def test_the_summary_has_every_key_of_its_type_and_no_other(run_dir):
    summary = read_json(run_dir / "summary.json")
    assert {name: type(value) for name, value in summary.items()} == SUMMARY


def test_the_summary_s_spans_are_parts_of_its_wall_time(run_dir):
    summary = read_json(run_dir / "summary.json")
    spans = summary["spans"]
    assert tuple(spans) == SPANS
    keys = {"total_s", "mean_s", "p50_s", "p90_s", "share"}
    assert all(span.keys() == keys for span in spans.values())
    total_s = sum(span["total_s"] for span in spans.values())
    assert total_s + summary["validate_s"] <= summary["wall_s"]
    assert sum(span["share"] for span in spans.values()) == pytest.approx(1.0)
    assert all(span["mean_s"] == pytest.approx(span["total_s"] / 6) for span in spans.values())
    assert all(0 < span["p50_s"] <= span["p90_s"] for span in spans.values())
    assert summary["records_per_s"] == pytest.approx(2 * 96 / summary["train_s"])


def test_the_log_has_a_line_for_every_report_and_validation(run_dir):
    def places(split):
        return [(line["step"], line["epoch"]) for line in lines(run_dir, split)]

    assert places("train") == [(2, 1), (3, 1), (4, 2), (6, 2)]
    assert places("val") == [(3, 1), (6, 2)]


def test_a_training_line_has_every_key(run_dir):
    keys = {
        *("step", "epoch", "split", "loss", "accuracy", "lr", "records_per_s", "epoch_left"),
        "left_s",
    }
    spans = {f"{name}{kind}_s" for name in SPANS for kind in ("", "_p50", "_p90")}
    assert all(line.keys() >= keys | spans for line in lines(run_dir, "train"))
    shorter = {name for name in spans if not name.startswith(("backward", "optimizer"))}
    assert all(line.keys() == keys | shorter for line in lines(run_dir, "val"))


def test_the_log_and_the_summary_say_how_reading_and_the_machine_went(run_dir):
    summary, logged = read_json(run_dir / "summary.json"), lines(run_dir, "train")
    assert "read" in summary["stages_s"]
    steps = [2, 1, 1, 2]  # of each line
    read_s = [line.get("stages_s", {}).get("read", 0.0) for line in logged]
    total_s = sum(own * count for own, count in zip(read_s, steps, strict=True))
    assert summary["stages_s"]["read"] == pytest.approx(total_s)
    assert all(0 <= line["ready"] <= summary["queue"]["depth"] for line in logged)
    assert 0 <= summary["queue"]["ready"] <= summary["queue"]["depth"] == 2
    assert summary["usage"].keys() >= {"cpu_cores", "peak_rss_bytes"}
    assert all(line["usage"]["peak_rss_bytes"] > 1 << 26 for line in logged)


def test_run_json_says_what_ran_where_on_which_data(run_dir):
    known = read_json(run_dir / "run.json")
    assert known.keys() == {
        *("command", "overrides", "started", "versions", "git", "machine", "data", "auto"),
        *("starts", "folder"),
    }
    assert known["starts"][0]["step"] == 0
    counts = {split: known["data"][split]["num_records"] for split in known["data"]}
    assert counts == {"train": 1437, "val": 360}
    versions = known["versions"]
    assert versions["torch"] == torch.__version__
    assert {"python", "hydra-core", "omegaconf", "numpy", "h5py", "lmdb"} <= versions.keys()


def test_a_repository_of_others_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    who = ("-c", "user.name=x", "-c", "user.email=x@y")
    Path("a").touch()
    for words in (
        ("init", "-q"),
        ("add", "a"),
        (*who, "commit", "-qm", "x"),
        ("config", "core.fsmonitor", "touch ran; false"),
        ("config", "filter.x.clean", "touch ran; cat"),
    ):
        subprocess.run(["git", *words], check=True)
    Path("a").write_text("changed")
    Path(".git/info/attributes").write_text("* filter=x\n")
    assert len(facts([], [])["git"]) == 40
    assert not Path("ran").exists()


def test_run_json_keeps_what_was_known_before(dataset, tmp_path):
    before = {**facts(["paceline", "train"], ["epochs=1"]), "mine": 1}
    write_object(tmp_path / "run.json", before)
    trained(dataset, tmp_path, "max_steps=1")
    known = read_json(tmp_path / "run.json")
    assert (known["command"], known["overrides"]) == (["paceline", "train"], ["epochs=1"])
    assert known["mine"] == 1
    assert known["data"].keys() == {"train", "val"}


# ------------------------------------------------------------------------------------------- course


def test_the_same_seed_learns_the_same_and_another_one_does_not(dataset, run_dir, tmp_path):
    again = trained(dataset, tmp_path / "again")
    other = trained(dataset, tmp_path / "other", "seed=1")
    assert again["val"] == read_json(run_dir / "summary.json")["val"]
    assert other["val"] != again["val"]


def test_a_run_that_is_stopped_says_so_and_is_resumed_to_the_same_log(dataset, run_dir, tmp_path):
    steps = iter(range(1, 100))
    assert trained(dataset, tmp_path, stop=lambda: next(steps) == 4)["status"] == "interrupted"
    summary = trained(dataset, tmp_path, f'resume.run="{tmp_path}"')
    assert (summary["status"], summary["steps"]) == ("finished", 6)
    assert lines(tmp_path, "val")[-1]["loss"] == lines(run_dir, "val")[-1]["loss"]
    files = (folder / "checkpoints" / "last.pt" for folder in (tmp_path, run_dir))
    own, whole = (torch.load(file, weights_only=True) for file in files)
    assert all(torch.equal(own[name], whole[name]) for name in whole)


def test_notes_of_parts_are_printed_and_kept(dataset, tmp_path):
    said = []
    summary = trained(dataset, tmp_path, "parallel=dp", "max_steps=1", say=said.append)
    assert summary["notes"]
    assert said == [*(f"note: {note}" for note in summary["notes"]), said[-1]]
    assert said[-1].startswith("training: model ")
    assert read_json(tmp_path / "summary.json")["notes"] == summary["notes"]


def test_a_moving_average_is_what_is_kept(dataset, tmp_path):
    trained(dataset, tmp_path, "ema_decay=0.5", "max_steps=2")
    state = newest_state(tmp_path).state
    last = torch.load(tmp_path / "checkpoints" / "last.pt", weights_only=True)
    assert all(torch.equal(last[name], value) for name, value in state["average"].items())
    assert any(not torch.equal(last[name], value) for name, value in state["model"].items())


def test_with_the_clock_off_the_losses_are_equal_and_no_span_is_reported(
    dataset, run_dir, tmp_path
):
    summary = trained(dataset, tmp_path, "clock=false")
    own, whole = (lines(folder, "train") for folder in (tmp_path, run_dir))
    assert [line["loss"] for line in own] == [line["loss"] for line in whole]
    assert summary["spans"] == {}
    assert summary["records_per_s"] > 0
    assert not [name for name in lines(tmp_path, "train")[0] if name.startswith("wait")]


@pytest.mark.parametrize("loader", ["plain", "prefetch", "stream"])
def test_with_the_clock_on_no_number_is_read_between_two_reports(dataset, tmp_path, loader):
    counts, reads = [], Reads()
    with reads:
        words = (f"loader={loader}", "report_every=100")
        trained(dataset, tmp_path, *words, stop=lambda: counts.append(reads.count) or False)
    assert counts[:3] == [counts[0]] * 3  # the first epoch's steps; its report comes after
    assert counts[3:] == [counts[3]] * 3


def test_profiling_leaves_a_trace_and_learns_the_same(dataset, tmp_path):
    plain, traced = tmp_path / "plain", tmp_path / "traced"
    trained(dataset, plain, "max_steps=16", "epochs=9")
    trained(dataset, traced, "debug=profile", "epochs=9")
    trace = read_json(traced / "profile" / "rank0.pt.trace.json")
    names = {event.get("name") for event in trace["traceEvents"]}
    assert names >= {*SPANS, "aten::conv2d"}
    own, other = (lines(folder, "train") for folder in (traced, plain))
    assert [line["loss"] for line in own] == [line["loss"] for line in other]


# ------------------------------------------------------------------------------------------- errors


def test_a_resumed_run_has_not_ended(dataset, tmp_path):
    class Killed(BaseException):
        pass

    def stop():
        raise Killed

    trained(dataset, tmp_path, "max_steps=3")
    write_object(tmp_path / "exit.json", {})
    with pytest.raises(Killed):
        trained(dataset, tmp_path, "max_steps=5", f'resume.run="{tmp_path}"', stop=stop)
    assert not (tmp_path / "summary.json").exists()
    assert not (tmp_path / "exit.json").exists()


# The first validation is the best, and the weights of the last one are others.
LEAST = ("best.metric=accuracy", "best.mode=min", "optim.lr=0.05")


def test_test_data_is_evaluated_once_after_training_with_the_best_weights(dataset, tmp_path):
    summary = trained(dataset, tmp_path, f"data.test={dataset}/val.h5", *LEAST)
    assert [line["step"] for line in lines(tmp_path, "test")] == [6]
    assert {**summary["test"], "step": 3} == summary["best"] != {**summary["val"], "step": 3}


def test_a_finished_run_is_tested_when_it_gets_test_data(dataset, tmp_path):
    first = trained(dataset, tmp_path, *LEAST)
    assert first["test"] == {}
    words = (f"data.test={{seen: {dataset}/val.h5}}", f'resume.run="{tmp_path}"')
    second = trained(dataset, tmp_path, *LEAST, *words)
    seen = {f"seen.{name}": mean for name, mean in first["best"].items() if name != "step"}
    assert second["test"] == read_json(tmp_path / "summary.json")["test"] == seen
    assert second["wall_s"] == first["wall_s"]
    other = trained(dataset, tmp_path, *LEAST, words[1], f"data.test={dataset}/train.h5")
    assert other["test"]["loss"] != second["test"]["seen.loss"]


def test_a_run_that_continues_elsewhere_is_tested_with_its_best_weights(dataset, tmp_path):
    words = (*LEAST, f"data.test={dataset}/val.h5")
    first = trained(dataset, tmp_path / "a", *words, "max_steps=5")
    second = trained(dataset, tmp_path / "b", *words, f'resume.run="{tmp_path}/a"')
    assert first["best"]["step"] == second["best"]["step"] == 3
    assert {**second["test"], "step": 3} == second["best"]


def test_recomputing_learns_the_same_and_the_summary_says_what_it_saves(dataset, run_dir, tmp_path):
    summary = trained(dataset, tmp_path, "recompute=[features]")
    for split in ("train", "val"):
        own, other = ([line["loss"] for line in lines(d, split)] for d in (tmp_path, run_dir))
        assert own == other
    cost = summary["recompute"]
    assert cost["records"] == 32
    assert cost["kept_bytes"] < cost["kept_bytes_without"] / 2
    assert read_json(run_dir / "summary.json")["recompute"] == {}


def test_a_sink_that_cannot_be_made_leaves_the_others_closed(dataset, tmp_path):
    before = set(threading.enumerate())
    wrong = "+sink.wrong={_target_: framework.sink.jsonl.JsonlSink, colour: red}"
    with pytest.raises(ConfigError, match=r"^error\[C106\]: sink.wrong"):
        trained(dataset, tmp_path, wrong)
    assert set(threading.enumerate()) == before


def test_choices_are_the_names_of_modules():
    groups = ("loader", "parallel", "precision")
    config = {name: {"_target_": f"framework.{name}.chosen.Part"} for name in groups}
    config["data"] = {"source": {"_target_": "framework.data.mine.source"}}
    assert choices(config) == {"data": "mine", **dict.fromkeys(groups, "chosen")}


# ------------------------------------------------------------------------------------------- tuning


class Restless:
    """Decides after every batch, at random."""

    def __init__(self, home, _):
        self.random = random.Random(1)
        self.plan = home

    def observe(self, seen):
        depth = self.random.randint(1, 4) if self.plan.depth else 0
        self.plan = ReadPlan(self.random.randint(1, 3), self.random.randint(1, 3), depth)
        return Decision(self.plan, "a test")


@pytest.fixture
def restless(monkeypatch):
    """Let ``workers.num=auto`` change everything after every batch."""
    monkeypatch.setattr(data_source, "LOOK_S", 0.0)
    monkeypatch.setattr(data_source, "LEAST_BATCHES", 1)
    monkeypatch.setattr(data_source, "Tuner", Restless)


AUTO = ("workers.num=auto", "report_every=1", "transform=flip")


@pytest.mark.parametrize(
    ("loader", "kind"), [("plain", "thread"), ("prefetch", "process"), ("stream", "thread")]
)
def test_live_tuning_changes_no_loss(dataset, tmp_path, restless, loader, kind):
    trained(dataset, tmp_path / "fixed", "workers.num=0", *AUTO[1:])
    choices = (f"loader={loader}", f"workers.kind={kind}")
    summary = trained(dataset, tmp_path / "auto", *AUTO, *choices)
    fixed, tuned = (lines(tmp_path / name, "train") for name in ("fixed", "auto"))
    assert [line["loss"] for line in fixed] == [line["loss"] for line in tuned]
    assert len(summary["tuning"]["decisions"]) > 3
    assert any("decisions" in line["tuning"] for line in tuned)
    assert "tuning" not in fixed[0]
