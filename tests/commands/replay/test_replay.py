import json
from pathlib import Path

import pytest

from tests.cli.command import is_one_error_line, paceline
from tests.commands.replay.replayed_runs import known_run, losses_of


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replay")
    return known_run(folder, "workers.num=0", "report_every=3")


@pytest.fixture
def run(made, monkeypatch):
    monkeypatch.chdir(made.path.parent)
    return made


def files(folder):
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_a_step_is_shown_and_the_run_stays_as_it_was(run):
    before = files("run")
    done = paceline("replay", "run", "step=6")
    assert done.code == 0, done.err
    assert "step 6 of epoch 2: loss" in done.out
    assert "2 reports on the way came out equal, bit by bit" in done.out
    after = files("run")
    new = {name for name in after if name not in before}
    assert new == {"run/replay/step_6/replay.json", "run/replay/step_6/batch.png"}
    assert {name: after[name] for name in before} == before
    assert not Path("outputs/replay").exists()
    assert json.loads(Path("run/replay/step_6/replay.json").read_text())["step"] == 6


def test_the_worst_step_is_found(run):
    done = paceline("replay", "run=run", "step=max:loss")
    assert done.code == 0, done.err
    assert "found among steps" in done.out


@pytest.mark.parametrize(
    ("words", "number"),
    [
        *((["run"], "C103"), (["nowhere", "step=1"], "K120"), (["run", "step=[1]"], "C340")),
        (["run", "setp=3"], "C102"),
    ],
)
def test_a_wrong_command_is_refused_in_one_line(run, words, number):
    assert is_one_error_line(paceline("replay", *words), number)
    assert not Path("outputs/replay").exists()


def replayed_by_command(run: Path, step: int | str) -> dict:
    done = paceline("replay", str(run), f"step={step}")
    assert done.code == 0, done.err
    folder = run / "replay"
    newest = max(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    return json.loads((newest / "replay.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (2, ("parallel=ddp", "loader=prefetch", "workers.num=2", "augment=crop_flip")),
        (3, ("parallel=ddp", "accumulate=2", "ema_decay=0.9")),
        (2, ("parallel=fsdp", "parallel.unit_parameters=100", "clip_norm=0.5", "optim=adamw")),
    ],
)
def test_a_step_of_several_ranks_is_repeated_by_as_many(tmp_path, ranks, words):
    known = known_run(tmp_path, *words, f"parallel.num_processes={ranks}")
    for step in (1, 6, 11):
        result = replayed_by_command(known.path, step)
        assert losses_of(result).items() <= known.losses.items()
        assert result["repeated_reports"]
        assert not result["differing_reports"]
        assert len(result["records"]) == 12  # of all ranks
        assert len({record["index"] for record in result["records"]}) == 12
        assert all(norm > 0 for norm in result["gradients"].values())
    worst = replayed_by_command(known.path, "max:loss")
    assert worst["means"]["loss"] == max(known.losses.values())


@pytest.mark.slow
def test_the_step_that_ended_a_run_of_two_ranks_is_found(tmp_path):
    words = ("parallel=ddp", "parallel.num_processes=2", "workers.num=0")
    known = known_run(tmp_path, *words, "optim.lr=1e18", "schedule=constant")
    result = replayed_by_command(known.path, "nan")
    assert not result["finite"]
    assert "P104" in result["ended"] or "N101" in result["ended"]


@pytest.mark.slow
def test_a_run_whose_ranks_changed_is_repeated_from_a_state_between(tmp_path):
    words = ("parallel=ddp", "parallel.num_processes=2", "workers.num=0")
    known = known_run(tmp_path, *words, "epochs=1")  # keeps the state of step 4
    resumed = ("resume=run", "epochs=3", "parallel.num_processes=3")
    assert paceline("train", *resumed, cwd=tmp_path).code == 0
    result = replayed_by_command(known.path, 7)
    assert result["from_step"] >= 4
    assert result["repeated_reports"]
    assert not result["differing_reports"]
