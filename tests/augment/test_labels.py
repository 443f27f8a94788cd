import pytest
import torch

from framework.augment.crop_flip import CropFlip
from framework.augment.labels import inverted, leaving_alone, moving
from framework.augment.normalize import Normalize
from framework.contracts.records import IGNORE
from framework.errors import ConfigError


def test_a_copy_moves_the_label_maps():
    augment = CropFlip(["image", "mask"], 2, 0.5, None, None)
    known = moving(augment, ["mask"])
    assert (known.fields, known.labels) == (("image",), ("mask",))
    assert (augment.fields, augment.labels) == (("image", "mask"), ())


def test_colors_of_a_label_map_cannot_be_changed():
    augment = Normalize(["image", "mask"], [0.5], [0.5])
    assert leaving_alone(augment, ["other"], "normalizes") is augment
    with pytest.raises(
        ConfigError, match=r"C193.*augment\.field = image, mask: normalizes mask, a label map"
    ):
        leaving_alone(augment, ["mask"], "normalizes")


def test_inverting_twice_gives_the_numbers_back():
    numbers = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(inverted(inverted(numbers)), numbers)
    assert inverted(torch.zeros(1, dtype=torch.uint8)).item() == IGNORE
