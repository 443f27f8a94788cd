import sys

import pytest
import torch

from framework.augment.compose import Compose
from framework.augment.normalize import Normalize
from framework.augment.random_erasing import RandomErasing
from framework.errors import ConfigError, ResourceError
from framework.order.draws import draws

pytest.importorskip("kornia")
from framework.augment.kornia import Kornia

STEPS = [
    {"name": "RandomHorizontalFlip", "params": {"p": 0.5}},
    {"name": "RandomRotation", "params": {"degrees": 30.0, "p": 1.0}},
    {"name": "RandomGaussianNoise", "params": {"p": 0.5}},
]
IMAGE = torch.randint(
    0, 256, (4, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
NUMBERS = draws(torch.arange(4), 0, 0, 2)


def applied(steps=STEPS, together=False, image=IMAGE, numbers=NUMBERS):
    return Kornia("image", steps, together)({"image": image}, numbers)["image"]


def test_every_record_is_changed_by_draws_of_its_own():
    same = applied(image=IMAGE[:1].expand(4, 3, 8, 8))
    assert len({record.numpy().tobytes() for record in same}) == 4


def test_together_depends_on_the_batch_and_one_by_one_does_not():
    assert torch.equal(applied()[2:], applied(image=IMAGE[2:], numbers=NUMBERS[2:]))
    assert not torch.equal(
        applied(together=True)[2:], applied(together=True, image=IMAGE[2:], numbers=NUMBERS[2:])
    )


def test_a_pair_is_changed_alike():
    result = Kornia(["blurry", "sharp"], STEPS[:2], False)(
        {"blurry": IMAGE, "sharp": IMAGE.clone()}, NUMBERS
    )
    assert torch.equal(result["blurry"], result["sharp"])


def test_outside_training_bytes_only_become_floats():
    assert torch.allclose(
        Kornia("image", STEPS, False)({"image": IMAGE}, None)["image"], IMAGE / 255
    )


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (
            {"name": "RandomRotate"},
            r"C130.*pipeline.0.name = RandomRotate.*did you mean RandomRotation",
        ),
        ({"name": "torch"}, "C130"),
        ({"name": "AugmentationBase2D"}, "C130"),
        ({"name": "RandomRotation"}, r"C131.*degrees"),
        ({"name": "RandomRotation", "params": {"degree": 3}}, r"C131.*degree"),
        ({"name": "RandomRotation", "parms": {}}, r"C131.*pipeline.0.parms"),
    ],
)
def test_a_step_that_cannot_be_is_said_before_the_first_record(step, words):
    with pytest.raises(ConfigError, match=words):
        Kornia("image", [step], False)


def test_no_steps_are_refused():
    with pytest.raises(ValueError, match="pipeline"):
        Kornia("image", [], False)


def test_without_its_package_the_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "kornia", None)
    monkeypatch.setitem(sys.modules, "kornia.augmentation", None)
    with pytest.raises(ResourceError, match=r"R131.*pip install 'paceline\[kornia\]'"):
        Kornia("image", STEPS, False)


def test_it_does_not_take_normalized_pixels_and_leaves_them_from_0_to_1():
    kornia = Kornia("image", STEPS, False)
    normalize = Normalize("image", [0.5], [0.2])
    with pytest.raises(ValueError, match=r"parts\.k takes pixels from 0 to 1, and parts\.n before"):
        Compose({"n": normalize, "k": kornia})
    erasing = RandomErasing("image", 1.0, [0.2, 0.3], [1.0, 1.0], [127.0])
    with pytest.raises(ValueError, match=r"parts\.e\.value .* parts\.k before it"):
        Compose({"k": kornia, "e": erasing, "n": normalize})
