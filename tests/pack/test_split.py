import hashlib
import re
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.contracts.records import Field
from framework.errors import ConfigError
from framework.pack.split import STRATIFIED, SplitRule, by_groups, by_hash, hashed

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
    ("path", "store"),
    [("d.h5", "d-val.h5"), ("out/d.v2.lmdb", "out/d.v2-val.lmdb"), ("d", "d-val")],
)
def test_a_store_is_named_after_its_split(path, store):
    assert SplitRule(TWO).path(path, "val") == store


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
