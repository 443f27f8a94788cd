"""``paceline replay`` as its users meet it."""

import json
from pathlib import Path

import pytest

from tests.cli.command import is_one_error_line, paceline
from tests.commands.replay.replayed_runs import SMALL, known_run


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
    names = ("replay.json", "batch.png", "replay.html")
    assert new == {f"run/replay/step_6/{name}" for name in names}
    assert {name: after[name] for name in before} == before
    assert not Path("outputs/replay").exists()
    assert (
        json.loads(Path("run/replay/step_6/replay.json").read_text())["weights"] == run.weights[6]
    )


def test_the_worst_step_is_found(run):
    done = paceline("replay", "run=run", "step=max:loss")
    assert done.code == 0, done.err
    assert "found among steps" in done.out


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (["run"], "C103"),
        (["nowhere", "step=1"], "K120"),
        (["run", "step=0"], "C340"),
        (["run", "step=[1]"], "C340"),
        (["run", "step=1000"], "C341"),
        (["run", "step=max:los"], "C342"),
        (["run", "step=nan"], "C343"),
        (["run", "setp=3"], "C102"),
    ],
)
def test_what_cannot_be_replayed_is_said_in_one_line(run, words, number):
    assert is_one_error_line(paceline("replay", *words), number)
    assert not Path("outputs/replay").exists()


@pytest.mark.slow
def test_a_step_of_two_processes_with_virtual_ranks_is_repeated_by_one(tmp_path):
    words = ("parallel=virtual", "parallel.virtual_ranks=4", "workers.num=0")
    known = known_run(tmp_path, *words)
    for step in (1, 6, 11):
        done = paceline("replay", "run", f"step={step}")
        assert done.code == 0, done.err
        found = json.loads((known.path / f"replay/step_{step}/replay.json").read_text())
        assert found["weights"] == known.weights[step]
        assert found["means"]["loss"] == known.losses[step]


@pytest.mark.slow
def test_a_run_of_two_ranks_is_refused(tmp_path):
    words = ("parallel=ddp", "parallel.num_processes=2", "workers.num=0", "max_steps=2")
    assert paceline("train", *SMALL, *words, "hydra.run.dir=run").code == 0
    assert is_one_error_line(paceline("replay", "run", "step=1"), "C344")
