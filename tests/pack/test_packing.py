import hashlib
import os
import re
import signal
from collections import Counter
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.contracts.records import Chunk, Field
from framework.errors import ConfigError, DataError
from framework.pack import jobs, verify_store
from framework.pack.pack_store import pack
from framework.pack.packing import (
    STRATIFIED,
    BadItem,
    JobResult,
    Journal,
    SplitRule,
    by_groups,
    by_hash,
    hashed,
)
from framework.store.open_store import open_store
from tests import conftest, forks
from tests.input.inputs import COUNT, Input, packing

CRCS = np.array([10, 1 << 31], np.uint32)  # one is a new line


@pytest.fixture
def journal():
    return Journal("x.h5", ".h5")


def make_done(number=3, size=5, records=2):
    bad = [BadItem(1, "b\udcffd\n", "D106", "broken")]
    return JobResult(number, records, 10, size, "ab", "cd", [1, 1], "ef", None, bad)


@pytest.mark.parametrize("data", [None, b"1234"])
def test_a_note_without_its_file_is_not_enough(journal, data):
    journal.files.mkdir(parents=True)
    if data is not None:
        journal.file(3).write_bytes(data)
    journal.note(make_done(), CRCS)
    assert journal.done(3) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"number": 1}', '{"bad": 5}'])
def test_a_damaged_note_counts_for_nothing(journal, text):
    journal.folder.mkdir()
    (journal.folder / "000003.job").write_text(text)
    (journal.folder / "job.json").write_text("{")
    assert journal.done(3) is None
    assert journal.begun() == {}


# -------------------------------------------------------------------------------------- splits

TWO = {"train": 0.9, "val": 0.1}
LABEL = Field("int64", ())
FIELDS = {
    "image": Field("uint8", (3, None, None), "image"),
    "label": LABEL,
    "speaker": Field("uint8", (None,), kind="text"),
    "boxes": Field("float32", (None, 4), kind="boxes"),
}

shares = st.lists(st.integers(1, 100), min_size=2, max_size=5).map(
    lambda weights: [Fraction(weight, sum(weights)) for weight in weights]
)


def hashes_of(texts):
    return hashed(text.encode(errors="surrogatepass") for text in texts)


def cuts_of(parts):
    return [sum(parts[:end]) for end in range(1, len(parts))]


def spoken(counts):
    """Return hashes of records. ``counts`` has the number of records of each group."""
    return hashes_of([str(group) for group, count in enumerate(counts) for _ in range(count)])


# ------------------------------------------------------------------------------------- the hash


def test_the_hash_is_the_one_in_the_docs():
    number = int.from_bytes(hashlib.sha256("cat/ä.png".encode()).digest()[:8], "big")
    assert hashed(["cat/ä.png".encode()]).tolist() == [number]
    assert by_hash([Fraction(number + 1, 2**64)], hashed(["cat/ä.png".encode()])).tolist() == [0]
    assert by_hash([Fraction(number, 2**64)], hashed(["cat/ä.png".encode()])).tolist() == [1]


# --------------------------------------------------------------------------------------- groups


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), shares, st.randoms())
def test_groups_stay_together_in_any_order(counts, parts, random):
    hashes = spoken(counts)
    splits = by_groups(cuts_of(parts), hashes)
    assert all(len(set(splits[hashes == own])) == 1 for own in set(hashes.tolist()))
    order = list(range(len(hashes)))
    random.shuffle(order)
    assert by_groups(cuts_of(parts), hashes[order]).tolist() == splits[order].tolist()


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), shares)
def test_a_cut_misses_its_place_by_half_a_group_at_most(counts, parts):
    splits = by_groups(cuts_of(parts), spoken(counts))
    for number, cut in enumerate(cuts_of(parts)):
        assert abs(int((splits <= number).sum()) - cut * sum(counts)) <= Fraction(max(counts), 2)


# -------------------------------------------------------------------------------------- classes


@given(st.lists(st.integers(0, 3), min_size=20, max_size=80), st.randoms())
def test_stratified_splits_do_not_depend_on_the_order(labels, random):
    rule = SplitRule({"a": 0.5, "b": 0.25, "c": 0.25}, STRATIFIED)
    hashes, labels = hashes_of(map(str, range(len(labels)))), np.array(labels)
    splits = rule.assign(hashes, labels)
    order = list(range(len(labels)))
    random.shuffle(order)
    assert rule.assign(hashes[order], labels[order]).tolist() == splits[order].tolist()
    for label in set(labels.tolist()):
        sizes = Counter(splits[labels == label].tolist())
        assert abs(sizes[0] - 0.5 * (labels == label).sum()) < 1


# ------------------------------------------------------------------------------------- the rule


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "at least two splits"),
        ({"train": 0.5, "a/b": 0.5}, "at least two splits, with letters"),
        ({"train": 1, "val": 0.0}, "the share of train must be a number above 0 and below 1"),
        ({"train": 0.5, "val": float("nan")}, "the share of val"),
        ({"train": 0.5, "val": "half"}, "the share of val"),
        ({"train": 0.3333, "val": 0.3333, "test": 0.3333}, "the shares are 0.9999 together"),
    ],
)
def test_shares_that_cannot_be_are_refused(given, words):
    with pytest.raises(ConfigError, match=rf"C240\]: pack\.split = .*{re.escape(words)}"):
        SplitRule(given)


@pytest.mark.parametrize(
    ("path", "store"), [("d.h5", "d-val.h5"), ("out/d.v2.lmdb", "out/d.v2-val.lmdb")]
)
def test_a_store_is_named_after_its_split(path, store):
    assert packing(path, split=SplitRule(TWO)).paths["val"] == store


@pytest.mark.parametrize("by", ["image", "boxes", "speakers"])
def test_another_field_is_refused_with_those_that_fit(by):
    with pytest.raises(ConfigError, match=rf"C242.*= {by}: .*choose label, speaker, stratified"):
        SplitRule(TWO, by).check_fields(FIELDS)


@pytest.mark.parametrize(
    ("by", "words"), [(None, "2 keys"), ("speaker", "2 values of speaker"), (STRATIFIED, "2 keys")]
)
def test_an_empty_split_is_an_error_that_says_why(by, words):
    hashes = hashes_of(["a", "b", "b", "b"])
    labels = np.zeros(4, np.int64) if by == STRATIFIED else None
    rule = SplitRule({"most": 0.998, "little": 0.001, "less": 0.001}, by)
    with pytest.raises(ConfigError, match=rf"C244.*little has no record: 4 records have {words}"):
        rule.assign(hashes, labels)


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


def content(path):
    return [Path(own).read_bytes() for own in split(path).paths.values()]


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
            mean = float(pixels.mean())
            assert manifest.statistics["image"].mean[0] == pytest.approx(mean, rel=0.01)
            words = f"{name} of {{train: 0.7, val: 0.2, test: 0.1}} by stratified"
            assert manifest.options["split"] == words
        assert verify_store.verify(f"x-{name}.h5", 0, print).findings == []


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
    for path in split().paths.values():
        conftest.write_store(path, conftest.make_records(3))
    before = content("x.h5")
    # The keys of five jobs are asked for to divide them, and then for each of three splits.
    child = forks.forked(killed, "x.h5", jobs, "keys_of", 5 + 11)
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
