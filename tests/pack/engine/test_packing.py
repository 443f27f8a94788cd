import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import ConfigError
from tests.input.inputs import packing


@given(st.integers(0, 200), st.integers(1, 20))
def test_shares_hold_every_job_once(num_jobs, parts):
    shares = [packing(part=part, parts=parts).share(num_jobs) for part in range(parts)]
    assert [number for share in shares for number in share] == list(range(num_jobs))


@pytest.mark.parametrize(
    "options",
    [{"part": 3, "parts": 3}, {"part": -1, "parts": 3}, {"parts": 3}, {"parts": 0}, {"part": 1}],
)
def test_a_share_that_cannot_be_is_refused(options):
    with pytest.raises(ConfigError, match=r"C151\]: pack\.part = .*, pack\.parts = "):
        packing(**options)
