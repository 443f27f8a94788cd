import numpy as np
import pytest
import torch

from framework.contracts.data import may_turn
from framework.image.scale import scale_into
from framework.transform.flip import FlipTransform
from framework.transform.rotate import CODES, Rotate


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_a_code_turns_an_image_counterclockwise(turns, interleaved):
    image = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    expected = np.rot90(image, turns).transpose(2, 0, 1)
    out = np.empty(expected.shape, np.uint8)
    pixels = image if interleaved else np.ascontiguousarray(image.transpose(2, 0, 1))
    scale_into(pixels, interleaved, None, True, CODES[turns], out)
    assert np.array_equal(out, expected)


def test_every_number_of_turns_is_drawn_about_equally_often():
    numbers = torch.linspace(0, 0.9999, 1000).unsqueeze(1)
    flips = Rotate([0, 1, 3]).windows(torch.tensor([[4, 6]]).expand(1000, -1), numbers)[:, 4]
    counts = torch.bincount(flips, minlength=8)[[CODES[0], CODES[1], CODES[3]]]
    assert counts.sum() == 1000
    assert int(counts.min()) >= 333


@pytest.mark.parametrize("turns", [[], [4], [-1], [1.5]])
def test_other_turns_are_refused(turns):
    with pytest.raises(ValueError, match="quarter turns, 0 to 3"):
        Rotate(turns)


def test_a_transform_says_whether_it_may_turn():
    assert may_turn(Rotate([0, 1]))
    assert not may_turn(Rotate([0, 2]))
    assert not may_turn(FlipTransform(0.5, 0.5))
