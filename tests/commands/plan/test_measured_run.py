"""Figures are read from the directory of a run."""

import json
from pathlib import Path

import pytest

from framework.commands.plan.measured_run import measured_run
from framework.errors import CheckpointError, ConfigError
from tests.cli.command import paceline


@pytest.fixture
def run_dir():
    words = ["epochs=2", "report_every=3", "hydra.run.dir=run", "sink=[jsonl]", "batch_size=256"]
    done = paceline("train", *words)
    assert done.code == 0, done.err
    return Path("run")


def test_a_finished_run_is_measured(run_dir):
    run = measured_run(run_dir)
    assert (run.ranks, run.rank_batch, run.epochs, run.num_records) == (1, 256, 2, 1437)
    assert run.step_s > 0
    assert 0 < run.wait_share < 1
    assert run.memory_bytes > 1e7
    assert run.state_bytes > run.weight_bytes > 0
    assert run.store_bytes == Path("outputs/data/digits/train.h5").stat().st_size
    assert run.validate_s is not None
    assert run.reads_ahead
    assert measured_run(run_dir, cores=1).cores_per_rank == 1


@pytest.mark.parametrize(
    ("words", "count"),
    [(["limit=60"], 60), (["select=label < 2"], 290), (["fold=0", "folds=3"], 958)],
)
def test_an_epoch_has_only_the_records_in_use(words, count):
    words = [*words, "batch_size=12", "epochs=1", "report_every=2", "sink=[jsonl]"]
    done = paceline("train", *words, "hydra.run.dir=run")
    assert done.code == 0, done.err
    run = measured_run(Path("run"))
    assert (run.epoch_records, run.num_records, run.last) == (count, 1437, "short")


def test_a_limited_run_of_an_older_version_is_refused(run_dir):
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary.pop("records_per_epoch") == 1437
    (run_dir / "summary.json").write_text(json.dumps(summary))
    assert measured_run(run_dir).epoch_records == 1437
    config = json.loads((run_dir / "resolved.json").read_text())
    (run_dir / "resolved.json").write_text(json.dumps(config | {"limit": 60}))
    with pytest.raises(ConfigError, match=r"C398.*trained with limit"):
        measured_run(run_dir)


def read_lines(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def write_lines(path, lines):
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_only_the_last_part_of_a_resumed_run_counts(run_dir):
    done = paceline("train", f"resume={run_dir}", "epochs=3")
    assert done.code == 0, done.err
    lines = read_lines(run_dir)
    slow = [line | {"records_per_s": 1.0} for line in lines if line["step"] <= 12]
    assert len(slow) == 6
    write_lines(run_dir, [*slow, *lines[6:]])
    run = measured_run(run_dir)
    assert run.step_s < 256
    assert run.validate_s == json.loads((run_dir / "summary.json").read_text())["validate_s"]


def test_sets_that_are_validated_together_are_one_validation(run_dir):
    lines = read_lines(run_dir)
    for line in [line for line in lines if line["split"] == "val"]:
        line["split"] = "val.clean"
        lines.append(line | {"split": "val.noisy"})
    before = measured_run(run_dir).validate_s
    write_lines(run_dir, lines)
    assert measured_run(run_dir).validate_s == before


def test_a_run_without_reports_is_refused(run_dir):
    (run_dir / "metrics.jsonl").write_text("")
    with pytest.raises(ConfigError, match="too few reports"):
        measured_run(run_dir)


def test_a_run_of_two_hosts_is_refused(run_dir):
    path = run_dir / "resolved.json"
    config = json.loads(path.read_text())
    config["parallel"] |= {"num_processes": 2, "num_nodes": 2}
    path.write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="was trained on 2 hosts"):
        measured_run(run_dir)


def test_a_run_that_has_not_ended_is_refused(run_dir):
    (run_dir / "summary.json").write_text(json.dumps({})[:1])
    with pytest.raises(CheckpointError, match=r"summary\.json cannot be read"):
        measured_run(run_dir)


def test_anything_else_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="K120"):
        measured_run(tmp_path)
