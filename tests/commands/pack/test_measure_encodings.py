import os

import numpy as np
import pytest

from framework.commands.pack.measure_encodings import Cost, measure, recommend, take_sample
from framework.contracts.records import Chunk, Field, Manifest
from framework.media.decode import encode_png
from framework.pack.images import Preparation
from tests.input.inputs import Input

GIB = 1 << 30


class Pictures:
    """PNG files of noise, ``varied`` in size."""

    def __init__(self, count=30, varied=False):
        rng = np.random.default_rng(0)
        sizes = [(24, 32 + 8 * (n % 2 if varied else 0)) for n in range(count)]
        self.files = [encode_png(rng.integers(0, 256, (3, *size), np.uint8)) for size in sizes]
        self.manifest = Manifest(
            count, {"image": Field("uint8", (3, None, None), "image")}, source="memory"
        )

    def read(self, start, stop):
        return Chunk({"image": self.files[start:stop]}, [str(n) for n in range(start, stop)])

    def name(self, index):
        return str(index)


def cost(encode, source=None, **options):
    source = source or Pictures()
    return measure(
        source,
        take_sample(source),
        "x.h5",
        {"encode": encode, **options},
        lambda settings: Preparation(**settings),
    )


@pytest.mark.parametrize("encode", ["keep", "jpeg", "png", "raw"])
def test_each_encoding_is_measured_and_nothing_is_left(encode):
    measured = cost(encode)
    assert not measured.why_not
    assert measured.total_bytes == pytest.approx(30 * measured.record_bytes)
    assert min(measured.pack_rate, measured.read_rate) > 0
    assert os.listdir() == []


def test_a_sample_is_spread_and_counts_what_is_bad():
    sample = take_sample(Input(1000, bad=range(500)))
    assert sample.num_items == 200
    assert sample.num_bad == 100
    keys = [int(chunk.keys[0][1:]) for chunk in sample.chunks]
    assert max(np.diff(sorted(keys))) <= 6


SMALL = Cost("jpeg", 1e4, 1e8, 100, 900)
LARGE = Cost("raw", 2e5, 2e9, 500, 5000)
NEVER = Cost("keep", why_not="cannot be")


@pytest.mark.parametrize(
    ("disk", "memory", "expected"),
    [(1e12, 64 * GIB, "raw"), (1e9, 64 * GIB, "jpeg"), (1e12, GIB // 2, "raw"), (1e3, GIB, None)],
)
def test_the_fastest_that_fits_is_recommended(disk, memory, expected):
    best = recommend([NEVER, SMALL, LARGE], disk, memory)
    assert (best.encode if best else None) == expected
