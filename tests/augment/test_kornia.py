import sys

import pytest
import torch

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


def applied(image=IMAGE, numbers=NUMBERS, together=False):
    return Kornia("image", STEPS, together)({"image": image}, numbers)["image"]


def test_every_record_is_changed_by_draws_of_its_own():
    same = applied(IMAGE[:1].expand(4, 3, 8, 8))
    assert len({record.numpy().tobytes() for record in same}) == 4


@pytest.mark.parametrize(
    ("step", "words"),
    [
        pytest.param(
            {"name": "RandomRotate"},
            r"C130.*pipeline.0.name = RandomRotate.*did you mean RandomRotation",
            id="typo",
        ),
        pytest.param({"name": "AugmentationBase2D"}, "C130", id="base class"),
        pytest.param({"name": "RandomRotation"}, r"C131.*degrees", id="no degrees"),
    ],
)
def test_a_wrong_step_is_refused_before_the_first_record(step, words):
    with pytest.raises(ConfigError, match=words):
        Kornia("image", [step], False)


def test_without_its_package_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "kornia", None)
    monkeypatch.setitem(sys.modules, "kornia.augmentation", None)
    with pytest.raises(ResourceError, match=r"R131.*pip install .*kornia"):
        applied()
