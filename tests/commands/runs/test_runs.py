import json

import pytest

from tests.cli.command import is_one_error_line, paceline
from tests.commands.runs.run_folders import make_run


def test_a_folder_is_listed_sorted_and_chosen_from(tmp_path):
    make_run(tmp_path / "mine" / "a", metrics={"accuracy": 0.5})
    make_run(tmp_path / "mine" / "b", metrics={"accuracy": 0.9})
    make_run(tmp_path / "mine" / "c", code=6)
    done = paceline("runs", "mine", "where=accuracy > 0.1", "sort=-accuracy", "--json")
    assert done.code == 0
    assert [run["path"] for run in json.loads(done.out)] == ["mine/b", "mine/a"]
    assert not list((tmp_path / "outputs").iterdir())


def test_runs_that_fulfil_a_condition_are_deleted_once_that_is_confirmed(tmp_path):
    make_run(tmp_path / "a", code=6)
    make_run(tmp_path / "b")
    words = ("runs", "prune", "folder=.", "where=status == 'failed'")
    assert "would delete a" in paceline(*words).out
    assert "deleted a" in paceline(*words, "yes=true").out
    assert not (tmp_path / "a").exists()
    assert (tmp_path / "b").exists()


def test_a_named_run_is_deleted(tmp_path):
    make_run(tmp_path / "a (1)")
    assert paceline("runs", "prune", "a (1)").out.startswith("deleted a (1)\n")
    assert not (tmp_path / "a (1)").exists()


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (("prune",), "C371"),
        (("send",), "C371"),
        (("prune", "a", "where=code == 6"), "C372"),
        (("prune", "a", "yes=true"), "C372"),
        ((".", "yes=true"), "C372"),
        (("send", "a", "others=true"), "C372"),
        (("runs=[a]",), "C372"),
        (("none",), "C373"),
        ((".", "sort=7x"), "C374"),
        (("prune", "none"), "C375"),
        ((".", "other"), "C100"),
        ((".", "action=delete"), "C101"),
        (("prune", "a", "runs=[b]"), "C100"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, words, number):
    make_run(tmp_path / "a")
    done = paceline("runs", *words)
    assert is_one_error_line(done, number)
    assert done.code == 2
