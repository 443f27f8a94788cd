"""Cut, mirror and normalize as one change: by operators, and when the kernel is used."""

import sys

import pytest
import torch

from framework.augment import color_jitter, crop_flip, cutmix, flip, random_erasing
from framework.augment import normalize as pixels
from framework.augment.normalize import Normalize, PixelChange, by_kernel, by_operators
from framework.system.native import CheckedKernel

IMAGE = torch.arange(2 * 3 * 6 * 7, dtype=torch.uint8).view(2, 3, 6, 7)
MEAN = (0.1, 0.2, 0.3)
STD = (0.4, 0.5, 0.6)


@pytest.mark.parametrize("reflects", [False, True])
def test_the_operators_cut_and_mirror_as_crop_flip_does(reflects):
    offsets, mirror = torch.tensor([[0, 5], [4, 2]]), torch.tensor([True, False])
    result = by_operators(IMAGE, PixelChange(offsets, mirror, 3, reflects))
    assert result.equal(crop_flip.shifted(IMAGE, offsets, mirror, 3, reflects))


@pytest.mark.parametrize(
    ("image", "change"),
    [
        pytest.param(IMAGE.float(), PixelChange(), id="floats"),
        pytest.param(IMAGE[0], PixelChange(), id="one image"),
        pytest.param(
            IMAGE, PixelChange(scale=torch.ones(2), shift=torch.ones(2)), id="other channels"
        ),
        pytest.param(IMAGE, PixelChange(mirror=torch.tensor([True])), id="other mirrors"),
        pytest.param(IMAGE, PixelChange(torch.zeros(3, 2).long()), id="other offsets"),
        pytest.param(IMAGE, PixelChange(torch.zeros(2, 2).long(), None, 6, True), id="margins"),
        pytest.param(IMAGE[:0], PixelChange(), id="no image"),
    ],
)
def test_a_change_that_the_kernel_is_not_made_for_is_left_to_the_operators(image, change):
    kernel = CheckedKernel()
    assert by_kernel(kernel, image, change) is None
    assert kernel.failure is None


def test_without_triton_the_reason_is_kept_and_it_is_not_tried_again(monkeypatch):
    monkeypatch.setitem(sys.modules, "framework.augment.pixel_kernel", None)
    kernel = CheckedKernel()
    assert by_kernel(kernel, IMAGE, PixelChange()) is None
    assert kernel.failure.startswith("ModuleNotFoundError: ")
    monkeypatch.setattr(pixels, "_launched", None)
    assert by_kernel(kernel, IMAGE, PixelChange()) is None


def test_a_kernel_with_other_numbers_is_not_used(monkeypatch):
    monkeypatch.setattr(pixels, "_launched", lambda image, *_: image + 1)
    kernel = CheckedKernel()
    assert by_kernel(kernel, IMAGE, PixelChange()) is None
    assert kernel.failure == "its numbers differ from the operators'"


CLIPS = torch.randint(0, 256, (3, 3, 3, 8, 8), dtype=torch.uint8)  # as many frames as records
named = {"ids": lambda augment: type(augment).__name__}


@pytest.mark.parametrize(
    "augment",
    [
        cutmix.CutMix("video", "label", 2, 1.0, 1.0),
        random_erasing.RandomErasing("video", 1.0, [0.2, 0.3], [0.5, 2.0], [0.0, 0.0, 0.0]),
        color_jitter.ColorJitter("video", 0.5, 0.5, 0.5, 0.1),
    ],
    **named,
)
def test_clips_are_refused_by_augments_of_pictures(augment):
    batch = {"video": CLIPS, "label": torch.tensor([0, 1, 1])}
    with pytest.raises(ValueError, match=r"\(3, 3, 3, 8, 8\) are no pictures"):
        augment(batch, torch.rand(3, augment.num_draws))


@pytest.mark.parametrize(
    "augment", [flip.Flip("video", 0.5, 0.5), Normalize("video", MEAN, STD)], **named
)
def test_all_frames_of_a_clip_are_changed_alike(augment):
    draws = torch.tensor([[0.1, 0.9], [0.9, 0.1], [0.1, 0.1]])[:, : augment.num_draws]
    frames = [augment({"video": CLIPS[:, n].clone()}, draws)["video"] for n in range(3)]
    assert torch.equal(augment({"video": CLIPS}, draws)["video"], torch.stack(frames, 1))
