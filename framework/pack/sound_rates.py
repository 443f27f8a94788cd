"""The preparation of sounds for a store: one rate and one number of channels."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from framework.contracts.records import Chunk, Records
from framework.errors import DataError
from framework.media.sound_file import BadSound, SoundHeader, checked_header, resampled


@final
class SoundRates:
    """A pure, picklable change of sounds, which are decoded once to find damage.

    The first readable record decides.

    Args:
        names: The fields.
        rate: The rate that all become, in Hz; None: all must have the first one's.
        first: A record.
    """

    def __init__(self, names: Sequence[str], rate: int | None, first: Chunk) -> None:
        self.names, self.rate = names, rate
        data = first.records[names[0]][0]
        self.first = _header(data, f"{first.keys[0]}: {names[0]}")

    @property
    def stored_rate(self) -> int:
        """The rate of the stored sounds in Hz."""
        return self.rate or self.first.rate

    def __call__(self, chunk: Chunk) -> Records:
        """Return the fields. DataError D181 for a file that is not readable, D180 for others."""
        records: Records = {}
        for name in self.names:
            pairs = zip(chunk.records[name], chunk.keys, strict=True)
            records[name] = [self._prepared(data, f"{key}: {name}") for data, key in pairs]
        return records

    def _prepared(self, data: Any, where: str) -> Any:
        header = _header(data, where)
        if header.channels != self.first.channels:
            what = f"has {header.channels} channels, the first has {self.first.channels}"
            raise DataError(180, where, what, "pack files with as many channels")
        if header.rate == self.stored_rate:
            return data
        if self.rate is None:
            what = f"has {header.rate} samples per second, the first has {self.first.rate}"
            raise DataError(180, where, what, f"add pack.rate={self.first.rate}")
        try:
            return np.frombuffer(resampled(data, self.rate), np.uint8)
        except BadSound as error:
            raise _bad(where, error) from error


def _header(data: Any, where: str) -> SoundHeader:
    try:
        return checked_header(data)
    except BadSound as error:
        raise _bad(where, error) from error


def _bad(where: str, error: BadSound) -> DataError:
    what = f"not a readable WAV or FLAC file ({error})"
    return DataError(181, where, what, "correct or remove it")
