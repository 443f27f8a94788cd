"""``paceline pack pack.split=...`` as its users meet it."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from framework.store.open_store import open_store
from tests.cli.command import is_one_error_line, paceline

TWO = "pack.split={train: 0.9, val: 0.1}"
FUNCTION = """
def clip(number):
    for take in range(3):
        yield {"values": [number, take], "key": f"person{number % 5}/clip{number}-{take}"}
"""


def stored(path):
    """Return the keys and the records of a store."""
    with closing(open_store(path)) as store:
        every = torch.arange(store.manifest.num_records)
        return store.keys(every), store.read(every)


def speakers(path):
    return [text.tobytes().decode() for text in stored(path)[1]["speaker"].arrays()]


def write_table():
    """Write a table of 60 numbers by 12 speakers, some of whom say more than others."""
    lines = ["loudness,speaker,age,label"]
    for number in range(60):
        speaker = int(number**0.5) + number % 5
        label = "abc"[number % 3]
        lines.append(f"{number / 8},speaker {speaker},{speaker + 20},{label}")
    Path("table.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("output", ["hdf5", "lmdb"])
def test_keys_that_are_numbers_stay_those_of_the_whole(output):
    np.save("x.npy", np.arange(400, dtype=np.float32).reshape(200, 2))
    words = ("input=arrays", "input.path=x.npy", f"output={output}", "output.path=x")
    done = paceline("pack", *words, TWO)
    assert done.code == 0, done.err
    all_keys = []
    for name in ("train", "val"):
        keys, records = stored(f"x-{name}")
        assert records["x"][:, 0].tolist() == [2.0 * int(key) for key in keys]
        all_keys += map(int, keys)
    assert sorted(all_keys) == list(range(200))
    done = paceline("verify", "x-train", "x-val")
    assert done.code == 0, done.err


@pytest.mark.parametrize("field", ["speaker", "age"])
def test_the_rows_of_a_speaker_stay_together(field):
    write_table()
    words = ["input=list", "input.path=table.csv", f"pack.split_by={field}"]
    done = paceline("pack", *words, "output.path=t.h5", "pack.split={train: 0.8, val: 0.2}")
    assert done.code == 0, done.err
    train, val = speakers("t-train.h5"), speakers("t-val.h5")
    assert not set(train) & set(val)
    assert len(train) + len(val) == 60
    assert 6 <= len(val) <= 18


def test_a_function_gives_the_keys_and_a_pattern_the_groups():
    Path("clips.py").write_text(FUNCTION)
    words = ["input=function", "input.function=clips.clip", "input.items=30"]
    words += ["output.path=c.h5", "allow_targets=[clips]", "pack.split={train: 0.6, val: 0.4}"]
    done = paceline("pack", *words, "pack.split_by='^(person[0-9]+)/'")
    assert done.code == 0, done.err
    people = [{key.split("/")[0] for key in stored(f"c-{name}.h5")[0]} for name in ("train", "val")]
    assert list(map(len, people)) == [3, 2]
    assert not people[0] & people[1]
    assert paceline("pack", *words).code == 0
    keys = [key for name in ("train", "val") for key in stored(f"c-{name}.h5")[0]]
    assert sorted(keys) == sorted(f"person{n % 5}/clip{n}-{t}" for n in range(30) for t in range(3))


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (["pack.split=5"], "C101"),
        (["pack.split={train: 1.0}"], "C240"),
        (["pack.split={train: 0.9, val: 0.2}"], "C240"),
        ([TWO, "pack.split_by='(a)(b)'"], "C241"),
        ([TWO, "pack.split_by=speaker"], "C242"),
        ([TWO, "pack.split_by='(x)'"], "D243"),
        (["pack.split={train: 0.9999, val: 0.0001}", "pack.split_by=label"], "C244"),
        ([TWO, "output=folder"], "C245"),
        ([TWO, "pack.one_file=false"], "C245"),
        (["pack.split_by=label"], "C247"),
    ],
)
def test_what_cannot_be_split_is_refused_in_one_line(words, number):
    assert is_one_error_line(paceline("pack", "input=digits", "output.path=d.h5", *words), number)


def test_a_recipe_cannot_split_what_it_prepares():
    words = [f"+prepare.train.{TWO}", "dataset=missing"]
    assert is_one_error_line(paceline("train", "recipes=digits", *words), "C248")
