import pytest
import torch
from hydra import compose

from framework.augment.color_jitter import ColorJitter
from framework.augment.compose import Compose
from framework.augment.crop_flip import CropFlip
from framework.augment.flip import Flip
from framework.augment.mixup import Mixup
from framework.augment.normalize import Normalize
from framework.augment.random_erasing import RandomErasing
from framework.cli.hydra_app import resolved
from framework.cli.hydra_session import hydra_session
from framework.config.build import build
from framework.order.draws import draws

IMAGE = torch.arange(6 * 3 * 4 * 4).remainder(256).to(torch.uint8).view(6, 3, 4, 4)
PARTS = {
    "shift": CropFlip("image", 1, 0.0, None, None),
    "flip": Flip("image", 0.5, 0.5),
    "normalize": Normalize("image", [0.5], [0.2]),
}


def test_every_part_gets_draws_of_its_own_in_turn():
    composed, numbers = Compose(PARTS), draws(torch.arange(6), 0, 0, 5)
    assert composed.num_draws == 5
    expected = PARTS["shift"]({"image": IMAGE}, numbers[:, :3])
    expected = PARTS["normalize"](PARTS["flip"](expected, numbers[:, 3:5]), numbers[:, 5:])
    assert torch.equal(composed({"image": IMAGE}, numbers)["image"], expected["image"])


def test_outside_training_no_part_draws():
    result = Compose(PARTS)({"image": IMAGE}, None)["image"]
    assert torch.equal(result, PARTS["normalize"]({"image": IMAGE}, None)["image"])


def test_nothing_to_do_is_refused():
    with pytest.raises(ValueError, match="augment=none"):
        Compose({})


def test_parts_are_other_choices_of_the_group_in_the_order_they_are_named():
    wanted = [
        "augment=compose",
        *(
            f"+augment@augment.parts.{name}={name}"
            for name in ("flip", "color_jitter", "normalize", "mixup")
        ),
    ]
    with hydra_session("train"):
        typed = [f"augment.parts.normalize.{key}=[0.5]" for key in ("mean", "std")]
        words = [*wanted, *typed, "augment.parts.mixup.alpha=0.4", "model.num_classes=7"]
        block = resolved(compose("train", words))["augment"]
    composed = build("augment", block, ())
    result = composed(
        {"image": IMAGE, "label": torch.arange(6)}, draws(torch.arange(6), 0, 0, composed.num_draws)
    )
    assert list(composed.parts) == ["flip", "color_jitter", "normalize", "mixup"]
    assert result["label"].shape == (6, 7)


def test_draws_of_a_part_alternate_at_their_place_in_the_row():
    parts = {
        "shift": CropFlip("image", 1, 0.5, None, None, alternate=True),
        "normalize": PARTS["normalize"],
        "plain": PARTS["flip"],
        "flip": Flip("image", 0.5, 0.5, alternate=True),
    }
    composed = Compose(parts)
    assert composed.alternating == (2, 5, 6)
    assert composed.with_labels(["mask"]).alternating == (2, 5, 6)
    assert Compose(PARTS).alternating == ()


def test_parts_that_know_layouts_get_that_of_the_model():
    composed = Compose(PARTS).with_layout(torch.channels_last)
    assert composed.parts["normalize"].form.layout == torch.channels_last
    assert composed.parts["flip"] is PARTS["flip"]


JITTER = ColorJitter("image", 0.4, 0.0, 0.0, 0.0)


def erasing(value):
    return RandomErasing("image", 1.0, [0.2, 0.3], [1.0, 1.0], [value])


@pytest.mark.parametrize("second", [PARTS["normalize"], CropFlip("image", 4, 0.5, [0.5], [0.2])])
def test_pixels_are_normalized_only_once(second):
    words = "parts.two normalizes image, and parts.one before it has already: set mean and std"
    with pytest.raises(ValueError, match=words):
        Compose({"one": PARTS["normalize"], "two": second})
    assert Compose({"one": PARTS["shift"], "two": second}).num_draws >= 3


def test_parts_of_a_composition_inside_are_checked_too():
    with pytest.raises(ValueError, match=r"parts\.two normalizes .* parts\.one\.parts\.normalize"):
        Compose({"one": Compose(PARTS), "two": PARTS["normalize"]})


def test_colors_are_not_changed_after_normalizing():
    with pytest.raises(
        ValueError, match=r"parts\.jitter takes pixels .*: put it before parts\.one"
    ):
        Compose({"one": PARTS["normalize"], "jitter": JITTER})


@pytest.mark.parametrize("first", [JITTER, Mixup("image", "label", 3, 1.0, 1.0)])
def test_paint_above_1_on_pixels_from_0_to_1_is_refused(first):
    with pytest.raises(ValueError, match=r"parts\.e\.value = \[127\.0\] .* parts\.first before it"):
        Compose({"first": first, "e": erasing(127.0)})
    assert Compose({"first": first, "e": erasing(1.0)}).num_draws >= 5
    assert Compose({"e": erasing(127.0), "first": first}).num_draws >= 5


def test_paint_of_any_value_may_follow_normalizing():
    parts = {"jitter": JITTER, "normalize": PARTS["normalize"], "erase": erasing(2.5)}
    assert Compose(parts).num_draws == 9
