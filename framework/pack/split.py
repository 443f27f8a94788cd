"""Splits: which records go into which store if one packing makes several.

A hash places each record: the first 8 bytes, big-endian, of the SHA-256 of a text in UTF-8. It does
not depend on the order of the records, on other records, or on the machine.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import final

import numpy as np

from framework.contracts.class_labels import ONE_PER_RECORD
from framework.contracts.records import LABEL, Field
from framework.errors import ConfigError, DataError, listed
from framework.store.values import pattern_of_group

STRATIFIED = "stratified"
NAME = re.compile(r"\w[\w-]*")
NUM_HASHES = 1 << 64


@final
@dataclass(frozen=True)
class SplitRule:
    """How records are divided into splits, each of which becomes a store.

    Attributes:
        shares: The share of each split by name. All shares are positive, and 1 together.
        by: None: the hash of a record's key decides. ``stratified``: every class has the same
            shares. The name of a field, or a regular expression whose one group is searched in the
            key: records with the same value stay together.

    Raises:
        ConfigError: C240 for shares that are not possible, C241 for a regular expression that is
            not.
    """

    shares: Mapping[str, float]
    by: str | None = None

    def __post_init__(self) -> None:
        wrong = ""
        if len(self.shares) < 2 or not all(map(NAME.fullmatch, self.shares)):
            wrong = "must name at least two splits, with letters, digits, _ and -"
        for name, share in self.shares.items():
            if not wrong and (not isinstance(share, float) or not 0 < share < 1):
                wrong = f"the share of {name} must be a number above 0 and below 1"
        if not wrong and sum(self._exact) != 1:
            wrong = f"the shares are {float(sum(self._exact)):g} together, not 1"
        if wrong:
            fix = "give 'pack.split={train: 0.9, val: 0.1}', for example"
            raise ConfigError(240, f"pack.split = {self.words}", wrong, fix)
        _ = self.pattern

    @property
    def words(self) -> str:
        """The shares as on the command line, for messages."""
        shares = ", ".join(f"{name}: {share}" for name, share in self.shares.items())
        return f"{{{shares}}}"[:200]

    @property
    def _exact(self) -> list[Fraction]:
        return [Fraction(str(share)) for share in self.shares.values()]

    @cached_property
    def pattern(self) -> re.Pattern[str] | None:
        """The regular expression of ``by``, if it is one."""
        if self.by is None or "(" not in self.by:
            return None
        return pattern_of_group(self.by, f"pack.split_by = {self.by}", 241)

    @property
    def field(self) -> str | None:
        """The field whose values stay together; None: the keys decide."""
        if self.by == STRATIFIED or self.pattern is not None:
            return None
        return self.by

    @property
    def key_check(self) -> str | None:
        """What a key must match: ``pattern``, or "" for any text. None: keys do not decide."""
        if self.field is not None:
            return None
        return self.pattern.pattern if self.pattern is not None else ""

    def path(self, path: str, name: str) -> str:
        """Return the store of split ``name``, such as ``a-train.h5`` for ``a.h5``."""
        whole = Path(path)
        return str(whole.with_name(f"{whole.stem}-{name}{whole.suffix}"))

    def check_fields(self, fields: Mapping[str, Field]) -> None:
        """Check that the records have the field that decides. ConfigError C242."""
        where = f"pack.split_by = {self.by}"
        whole = [
            name
            for name, field in fields.items()
            if field.encoding == "raw"
            and field.shape in ONE_PER_RECORD
            and np.dtype(field.dtype).kind in "biu"
        ]
        if self.by == STRATIFIED and LABEL not in whole:
            what = "needs a field label with one whole number per record"
            fix = "leave it out, or name a field whose values stay together"
            raise ConfigError(242, where, what, fix)
        known = [name for name, field in fields.items() if field.kind == "text" or name in whole]
        if self.field is not None and self.field not in known:
            what = "does not name a field with a text or a whole number per record"
            choices = f"{listed(known)}, {STRATIFIED}," if known else STRATIFIED
            fix = f"choose {choices} or a regular expression with one group, such as '/(p[0-9]+)_'"
            raise ConfigError(242, where, what, fix)

    def texts(self, keys: Sequence[str], where: str) -> list[str]:
        """Return what is hashed of each record: its key, or the part that the pattern finds.

        DataError D243, at ``where``, for a record without a key, or in whose key nothing is found.
        """
        if "" in keys:
            fix = "set pack.split_by to a field"
            raise DataError(243, where, "has no key that could choose its split", fix)
        if self.pattern is None:
            return list(keys)
        texts: list[str] = []
        for key in keys:
            match = self.pattern.search(key)
            if match is None or not match.group(1):
                what = f"pack.split_by = {self.by} finds nothing in the key {key!r}"
                raise DataError(243, where, what, "correct it, or remove the item")
            texts.append(match.group(1))
        return texts

    def assign(self, hashes: np.ndarray, labels: np.ndarray | None) -> np.ndarray:
        """Return the number of each record's split: int64 [n].

        ``hashes`` are those of ``hashed``; ``labels``, integers [n], are for ``by=stratified``
        alone. ConfigError C244 if a split has no record.
        """
        cuts = list(accumulate(self._exact))[:-1]
        if self.by is None:
            splits = by_hash(cuts, hashes)
        elif labels is None:
            splits = by_groups(cuts, hashes)
        else:
            splits = _by_classes(self._exact, hashes, labels)
        missing = set(range(len(self.shares))) - set(np.unique(splits).tolist())
        if missing:
            name = list(self.shares)[min(missing)]
            values = "keys" if self.by in (None, STRATIFIED) else f"values of {self.by}"
            num_values = len(np.unique(hashes))
            what = f"{name} has no record: {len(hashes):,} records have {num_values:,} {values}"
            fix = f"give {name} a larger share; what has been read is kept"
            raise ConfigError(244, f"pack.split = {self.words}", what, fix)
        return splits

    @property
    def notes(self) -> tuple[str, ...]:
        if self.by != LABEL:
            return ()
        words = f"pack.split_by={LABEL} puts all records of a class into one split"
        return (f"{words}; pack.split_by={STRATIFIED} gives each split its share of every class",)


def hashed(texts: Iterable[bytes]) -> np.ndarray:
    """Return the hash of each text: uint64 [n]."""
    heads = b"".join(hashlib.sha256(text).digest()[:8] for text in texts)
    return np.frombuffer(heads, ">u8").astype(np.uint64)


def by_hash(cuts: Sequence[Fraction], hashes: np.ndarray) -> np.ndarray:
    """Return the split in which each hash, divided by 2**64, lies: int64 [n]."""
    limits = [min(math.ceil(cut * NUM_HASHES), NUM_HASHES - 1) for cut in cuts]
    return np.searchsorted(np.array(limits, np.uint64), hashes, side="right")


def by_groups(cuts: Sequence[Fraction], hashes: np.ndarray) -> np.ndarray:
    """Return the split of each record: int64 [n]. Records with one hash are a group.

    The records lie on a line in the order of their hashes, which the cuts divide. A group goes to
    the split in which its middle lies. So each cut misses its place by at most half a group.
    """
    _, places, sizes = np.unique(hashes, return_inverse=True, return_counts=True)
    middles = 2 * sizes.cumsum() - sizes  # in half records
    limits = [math.ceil(cut * 2 * len(hashes)) for cut in cuts]
    return np.searchsorted(limits, middles, side="right")[places]


def _by_classes(shares: Sequence[Fraction], hashes: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the split of each record: int64 [n].

    The records of a class, in the order of their hashes, go to the splits in turn. Each gets its
    exact share, rounded up or down: up where most is lacking after the classes before. So the sums
    over many small classes are near their shares, too.
    """
    splits = np.empty(len(labels), np.int64)
    order = np.lexsort((hashes, labels))
    lacks = [Fraction(0) for _ in shares]
    start = 0
    for size in np.unique(labels, return_counts=True)[1].tolist():
        counts = [math.floor(size * share) for share in shares]
        inexact = [n for n, share in enumerate(shares) if size * share != counts[n]]
        for n in inexact:
            lacks[n] += size * shares[n] - counts[n]
        inexact.sort(key=lacks.__getitem__, reverse=True)
        for n in inexact[: size - sum(counts)]:
            counts[n] += 1
            lacks[n] -= 1
        splits[order[start : start + size]] = np.repeat(np.arange(len(shares)), counts)
        start += size
    return splits
