import os
import signal
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from framework.contracts.records import Chunk, Field
from framework.errors import DataError
from framework.pack import join
from framework.pack.pack_store import pack
from framework.pack.split import STRATIFIED, SplitRule, hashed
from framework.pack.verify_store import verify
from framework.store.open_store import open_store
from tests.conftest import make_records, write_store
from tests.forks import forked
from tests.input.inputs import COUNT, Input, packing

RULE = SplitRule({"train": 0.7, "val": 0.2, "test": 0.1})
PATHS = ("x.h5", "x.lmdb")


class Spoken(Input):
    """Items of 40 speakers, of whom each has as many items as his number says."""

    def __init__(self, count=820):
        super().__init__(count)
        fields = {**self.manifest.fields, "speaker": Field("uint8", (None,), kind="text")}
        self.manifest = type(self.manifest)(count, fields, ["a", "b", "c"], source="memory")
        self.speakers = np.repeat(np.arange(41), np.arange(41))

    def read(self, start, stop):
        records, keys = super().read(start, stop)
        names = [f"speaker {self.speakers[item]}".encode() for item in range(start, stop)]
        return Chunk({**records, "speaker": [np.frombuffer(n, np.uint8) for n in names]}, keys)


def split(path="x.h5", source=None, rule=RULE, **options):
    return packing(path, source, split=rule, **options)


def content(path, rule=RULE):
    return [Path(rule.path(path, name)).read_bytes() for name in rule.shares]


def straight(path, rule=RULE):
    """Return the content of an undisturbed packing."""
    Path("straight").mkdir(exist_ok=True)
    pack(split(f"straight/{path}", rule=rule))
    return content(f"straight/{path}", rule)


def read(path):
    """Check the records of a store against their checksums, and return its keys and labels."""
    with closing(open_store(path)) as store:
        every = torch.arange(store.manifest.num_records)
        records = store.read(every)
        assert store.damaged(every, records) == []
        return [store.key(index) for index in every], records["label"].tolist()


@pytest.mark.parametrize("path", PATHS)
def test_each_record_is_in_the_split_of_its_key_in_the_order_of_the_items(path):
    packed = pack(split(path))
    keys = [f"k{number}" for number in range(COUNT)]
    numbers = RULE.assign(hashed(key.encode() for key in keys), None)
    for number, made in enumerate(packed.splits):
        wanted = np.flatnonzero(numbers == number)
        assert read(made.path) == ([keys[n] for n in wanted], (wanted % 3).tolist())
        assert (made.name, made.num_records) == (list(RULE.shares)[number], len(wanted))


def test_a_split_has_the_manifest_of_its_own_records():
    pack(split(rule=SplitRule(RULE.shares, STRATIFIED)))
    for name, share in RULE.shares.items():
        with closing(open_store(f"x-{name}.h5")) as store:
            manifest = store.manifest
            assert list(manifest.classes) == ["a", "b", "c"]
            assert manifest.class_counts == pytest.approx([COUNT / 3 * share] * 3, abs=1)
            pixels = store.read(torch.arange(manifest.num_records))["image"] / 255
            assert manifest.statistics["image"].mean[0] == pytest.approx(
                float(pixels.mean()), rel=0.01
            )
            words = f"{name} of {{train: 0.7, val: 0.2, test: 0.1}} by stratified"
            assert manifest.options["split"] == words
        assert verify(f"x-{name}.h5", 0, print).findings == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_records_of_a_group_stay_together(num_workers):
    rule = SplitRule({"train": 0.8, "val": 0.2}, "speaker")
    packed = pack(split(source=Spoken(), rule=rule), num_workers)
    speakers = []
    for made in packed.splits:
        with closing(open_store(made.path)) as store:
            texts = store.read(torch.arange(made.num_records))["speaker"].arrays()
        speakers.append({text.tobytes() for text in texts})
    assert not speakers[0] & speakers[1]
    assert len(speakers[0] | speakers[1]) == 40
    assert abs(packed.splits[0].num_records - 0.8 * 820) <= 20  # half of the largest group


def killed(path, module, name, number):
    """Pack until ``module.name`` has been called ``number`` times, and kill the process."""
    real, calls = getattr(module, name), []

    def deadly(*arguments, **keywords):
        result = real(*arguments, **keywords)
        calls.append(1)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(module, name, deadly)
    pack(split(path))


def test_old_stores_stay_until_all_new_ones_are_complete():
    for name in RULE.shares:
        write_store(RULE.path("x.h5", name), make_records(3))
    before = content("x.h5")
    # The keys of five jobs are asked for to divide them, and then for each of three splits.
    child = forked(killed, "x.h5", join, "keys_of", 5 + 11)
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert content("x.h5") == before
    pack(split())  # removes what the killed process left


class Nameless(Input):
    def read(self, start, stop):
        chunk = super().read(start, stop)
        return chunk._replace(keys=["" if key == "k70" else key for key in chunk.keys])


def test_a_record_without_a_key_ends_the_packing_or_is_left_out():
    with pytest.raises(DataError, match=r"D243\]: item 70: has no key"):
        pack(split(source=Nameless(100)))
    packed = pack(split(source=Nameless(100), on_error="skip"))
    assert [bad.item for bad in packed.bad] == [70]
    assert pack(split(source=Nameless(100), rule=SplitRule({"a": 0.6, "b": 0.4}, "label"))).splits


def test_what_is_in_the_place_of_a_split_stays():
    Path("x-val.h5").write_text("mine")
    with pytest.raises(DataError, match=r"D115\]: x-val\.h5"):
        pack(split())
    assert os.listdir() == ["x-val.h5"]
