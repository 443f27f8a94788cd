import pytest
import torch

from framework.transform.shorter_side import ShorterSide


@pytest.mark.parametrize(
    ("size", "expected"), [((100, 200), (50, 100)), ((200, 100), (100, 50)), ((30, 41), (50, 68))]
)
def test_the_shorter_side_gets_the_length_and_the_other_follows(size, expected):
    assert ShorterSide(50, True).scaled(torch.tensor([size])).tolist() == [list(expected)]


def test_a_length_of_nothing_is_refused():
    with pytest.raises(ValueError, match="length = 0"):
        ShorterSide(0, True)
