"""A sample of the damaged and hostile files of other programs; ``make faults`` has all of them."""

import os
import random
from pathlib import Path

import pytest
import soundfile

from tests.faults import bait, foreign
from tests.media.test_sound_file import sound

CASES = ("data=tar", "input=hdf5, columns")


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_file_is_named_or_gives_a_result(name):
    assert foreign.damaged(name, random.Random(5)) == ""


def test_a_file_that_is_cut_off_is_named_or_gives_every_record():
    assert foreign.cut("input=lmdb", random.Random(6)) == ""


def test_a_damaged_sound_is_packed_and_heard_or_named():
    assert foreign.heard(random.Random(4)) == ""


@pytest.mark.parametrize("kind", bait.KINDS)
def test_a_hostile_file_is_named_or_gives_a_result(kind):
    item = random.Random(kind).choice(bait.KINDS[kind]())
    assert (item.name, bait.attempt(item)) == (item.name, "")


def test_every_bait_has_a_name_of_its_own():
    names = [item.name for item in bait.baits()]
    assert len(set(names)) == len(names) > 500


# ------------------------------------------------------------------ the checks must be able to fail


def test_the_packed_records_are_compared_with_those_of_the_whole_file():
    case = foreign.cases()["input=parquet"]
    said = foreign.guarded(foreign._answered, case, case.contents[case.victim], {"label": [5]})
    assert "other records" in said


def test_a_file_that_no_error_names_is_reported():
    item = bait.Bait("nameless", lambda: (*foreign.PACK, "input=tar", "input.path=none.tar"), "x")
    assert "does not name x" in bait.attempt(item)


def test_a_canary_and_a_change_beside_the_box_are_reported(monkeypatch):
    for path, words in (("canary", "EXECUTED"), ("../outside.jpg", "FOLLOWED")):
        monkeypatch.setattr(
            bait, "answered", lambda *_, path=path: Path(path).write_text("") and ""
        )
        os.mkdir(path.strip("./"))
        os.chdir(path.strip("./"))
        assert words in bait.attempt(bait.Bait("evil", tuple, ""))
        os.chdir("..")


def test_a_sound_that_a_careless_reader_shortens_would_be_reported(monkeypatch):
    def careless(data, start=0, count=None):
        return soundfile.read(foreign.io.BytesIO(data), dtype="float32")[0]

    monkeypatch.setattr(foreign, "read_sound", careless)
    assert "silently" in foreign._decoded(sound()[:900], sound())
