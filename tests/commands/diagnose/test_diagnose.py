import json
from pathlib import Path

import pytest

from framework.commands.diagnose.diagnose import changed
from tests.cli.command import is_one_error_line, paceline

QUICK = ["seconds=1", "batch_size=32"]


def test_a_run_is_diagnosed_in_words_and_in_json():
    done = paceline("diagnose", *QUICK, "output=result.json", "apply=true")
    assert done.code == 0, done.err
    text = Path("result.json").read_text()
    assert "Infinity" not in text
    result = json.loads(text)
    assert done.out.splitlines()[-1] == "all figures: result.json"
    assert done.out.startswith(result["limit"][:60])
    assert "the whole" in done.out
    assert result["facts"]["storage"]["form"] == "hdf5"
    assert result["facts"]["whole"] > 0
    assert ("applied " in done.out) == (result["applied"] is not None) or ": nothing" in done.out
    assert Path("outputs/data/digits/train.h5").exists()  # packed first, as train would
    assert not list(Path().glob("outputs/2*"))


@pytest.mark.parametrize(
    ("words", "number"),
    [
        *((["apply=maybe"], "C191"), (["seconds=soon"], "C191"), (["seconds=0"], "C191")),
        *((["output=no/such/place.json"], "C191"), (["-m", "loader=plain,prefetch"], "C192")),
        *((["sedonds"], "C192"), (["apply"], "C192"), (["--wrong"], "C192")),
        *((["loader=plian"], "C104"), (["wrokers.num=2"], "C102")),
        (["data.train=nowhere.h5", "prepare=null"], "D101"),
    ],
)
def test_what_cannot_be_is_one_line(words, number):
    done = paceline("diagnose", *words)
    assert is_one_error_line(done, number), done.err
    assert done.code == (3 if number.startswith("D") else 2)


@pytest.mark.parametrize(
    ("words", "changes", "wanted"),
    [
        (["loader=plain", "epochs=3"], ["loader=prefetch"], ["epochs=3", "loader=prefetch"]),
        (["loader=plain", "loader.pin_memory=false"], ["loader=stream"], ["loader=stream"]),
        (
            ["workers.num=0", "workers.kind=process"],
            ["workers.num=2"],
            ["workers.kind=process", "workers.num=2"],
        ),
        (
            ["data=folder", "data.train=a", "dataset=b"],
            ["data=hdf5", "data.train=c"],
            ["dataset=b", "data=hdf5", "data.train=c"],
        ),
        (["+x=1"], [], ["+x=1"]),
    ],
)
def test_a_change_takes_the_place_of_what_it_changes(words, changes, wanted):
    assert changed(words, changes) == wanted
