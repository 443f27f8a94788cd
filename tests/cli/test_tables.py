import math

import pytest

from framework.cli.tables import seconds, size


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        *((0.0081, "8.1 ms"), (2.5e-5, "25 µs"), (1.0, "1 s"), (90.0, "90 s"), (600.0, "10 min")),
        *((10_800.0, "3 h"), (0.0, "0 µs"), (0.9996, "1,000 ms"), (0.9994e-3, "999 µs")),
        *((1000 * 3600.0, "1,000 h"), (None, "\N{EN DASH}"), (math.nan, "\N{EN DASH}")),
    ],
)
def test_a_duration_is_reported_in_the_unit_that_suits_it(value, wanted):
    assert seconds(value) == wanted


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        *((0, "0 B"), (1023, "1,023 B"), (1_028_096, "1,004 KiB"), (1023.9 * 2**30, "1,024 GiB")),
        *((2**30, "1 GiB"), (1.5 * 2**20, "1.5 MiB"), (None, "\N{EN DASH}")),
    ],
)
def test_sizes_are_in_binary_units(value, wanted):
    assert size(value) == wanted
