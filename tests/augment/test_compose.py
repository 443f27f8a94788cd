import pytest
import torch
from hydra import compose

from framework.augment import color_jitter, crop_flip, flip, normalize, random_erasing
from framework.augment.compose import Compose
from framework.cli.hydra_session import hydra_session, resolved
from framework.config.build import build
from framework.order.draws import draws

IMAGE = torch.arange(6 * 3 * 4 * 4).remainder(256).to(torch.uint8).view(6, 3, 4, 4)
SHIFT = crop_flip.CropFlip("image", 1, 0.0, None, None)
FLIP = flip.Flip("image", 0.5, 0.5)
NORMALIZE = normalize.Normalize("image", [0.5], [0.2])
JITTER = color_jitter.ColorJitter("image", 0.4, 0.0, 0.0, 0.0)
PARTS = {"shift": SHIFT, "flip": FLIP, "normalize": NORMALIZE}


def erasing(value):
    return random_erasing.RandomErasing("image", 1.0, [0.2, 0.3], [1.0, 1.0], [value])


def test_every_part_gets_draws_of_its_own_in_turn():
    composed, numbers = Compose(PARTS), draws(torch.arange(6), 0, 0, 5)
    assert composed.num_draws == 5
    expected = NORMALIZE(FLIP(SHIFT({"image": IMAGE}, numbers[:, :3]), numbers[:, 3:5]), None)
    assert torch.equal(composed({"image": IMAGE}, numbers)["image"], expected["image"])


def test_parts_that_know_layouts_get_that_of_the_model():
    composed = Compose(PARTS).with_layout(torch.channels_last)
    assert composed.parts["normalize"].form.layout == torch.channels_last


def test_parts_are_other_choices_of_the_group_in_the_order_they_are_named():
    names = ["flip", "color_jitter", "normalize", "mixup"]
    words = [
        "augment=compose",
        *(f"+augment@augment.parts.{name}={name}" for name in names),
        *(f"augment.parts.normalize.{key}=[0.5]" for key in ("mean", "std")),
        "augment.parts.mixup.alpha=0.4",
        "model.num_classes=7",
    ]
    with hydra_session("train"):
        composed = build("augment", resolved(compose("train", words))["augment"], ())
    numbers = draws(torch.arange(6), 0, 0, composed.num_draws)
    result = composed({"image": IMAGE, "label": torch.arange(6)}, numbers)
    assert list(composed.parts) == names
    assert result["label"].shape == (6, 7)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        pytest.param({}, "augment=none", id="nothing"),
        pytest.param(
            {"one": NORMALIZE, "two": crop_flip.CropFlip("image", 4, 0.5, [0.5], [0.2])},
            "parts.two normalizes image, and parts.one before it has already: set mean and std",
            id="normalized twice",
        ),
        pytest.param(
            {"one": NORMALIZE, "jitter": JITTER},
            r"parts\.jitter takes pixels .*: put it before parts\.one",
            id="colors after normalizing",
        ),
        pytest.param(
            {"first": JITTER, "e": erasing(127.0)},
            r"parts\.e\.value = \[127\.0\] .* parts\.first before it",
            id="paint above 1 after jitter",
        ),
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused(parts, words):
    with pytest.raises(ValueError, match=words):
        Compose(parts)
