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


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (("send",), "C371"),
        (("send", "a", "json=true"), "C372"),
        (("runs=[a]",), "C372"),
        (("none",), "C373"),
        ((".", "sort=7x"), "C374"),
        ((".", "other"), "C100"),
        ((".", "action=delete"), "C101"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, words, number):
    make_run(tmp_path / "a")
    done = paceline("runs", *words)
    assert is_one_error_line(done, number)
    assert done.code == 2
