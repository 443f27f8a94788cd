from importlib.util import find_spec

import pytest
import torch

from framework.augment.color_jitter import ColorJitter
from framework.augment.compose import Compose
from framework.augment.crop_flip import CropFlip
from framework.augment.cutmix import CutMix
from framework.augment.flip import Flip
from framework.augment.kornia import Kornia
from framework.augment.mixup import Mixup
from framework.augment.none import NoAugment
from framework.augment.normalize import Normalize
from framework.augment.random_erasing import RandomErasing
from framework.contracts.data import alternating_draws, is_exact
from framework.order.draws import draws

NORMALIZE = Normalize("image", [0.5], [0.5])
JITTER = ColorJitter("image", 0.4, 0.4, 0.4, 0.1)
ERASING = RandomErasing("image", 0.5, [0.02, 0.33], [0.3, 3.3], [0.0])
ALONE = [
    NoAugment(),
    NORMALIZE,
    CropFlip("image", 2, 0.5, [0.4, 0.5, 0.6], [0.2, 0.2, 0.3]),
    CropFlip("image", 3, 0.5, None, None),
    CropFlip("image", 2, 0.5, [0.5], [0.2], "reflect", alternate=True),
    Flip("image", 0.5, 0.5),
    Flip("image", 0.5, 0.5, alternate=True),
    JITTER,
    ERASING,
    Compose(
        {
            "flip": Flip("image", 0.5, 0.0),
            "jitter": JITTER,
            "normalize": NORMALIZE,
            "erase": ERASING,
        }
    ),
]
MIXING = [
    Mixup("image", "label", 3, 0.3, 0.8),
    CutMix("image", "label", 3, 1.0, 0.8),
]  # a record's partner is in its batch
if find_spec("kornia"):
    ALONE.append(
        Kornia(
            "image",
            [{"name": "RandomAffine", "params": {"degrees": 30.0}}, {"name": "RandomErasing"}],
            False,
        )
    )
both = pytest.mark.parametrize("training", [False, True])
every = pytest.mark.parametrize(
    "augment", ALONE + MIXING, ids=lambda augment: type(augment).__name__
)
alone = pytest.mark.parametrize("augment", ALONE, ids=lambda augment: type(augment).__name__)
exact = pytest.mark.parametrize(
    "augment",
    [a for a in ALONE + MIXING if type(a) is not Kornia],
    ids=lambda augment: type(augment).__name__,
)


def _batch(count=6):
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (count, 3, 5, 7), dtype=torch.uint8, generator=generator)
    return {"index": torch.arange(count), "image": image, "label": torch.arange(count) % 3}


def _draws(augment, training, epoch=0):
    return draws(torch.arange(6), 0, epoch, augment.num_draws) if training else None


def _equal(item, two):
    return list(item) == list(two) and all(torch.equal(item[name], two[name]) for name in item)


@every
def test_only_ours_say_that_they_are_exact(augment):
    assert is_exact(augment) == (type(augment) is not Kornia)


@every
def test_only_numbers_that_are_drawn_alternate(augment):
    assert set(alternating_draws(augment)) <= set(range(augment.num_draws))


@pytest.mark.skipif(not find_spec("kornia"), reason="Kornia is not installed")
def test_a_composition_is_as_exact_as_its_parts():
    assert not Compose({"flip": Flip("image", 0.5, 0.0), "kornia": ALONE[-1]}).exact


@every
@both
def test_what_it_is_given_stays_as_it_was(augment, training):
    batch, numbers = _batch(), _draws(augment, training)
    augment(batch, numbers)
    assert _equal(batch, _batch())
    assert numbers is None or torch.equal(numbers, _draws(augment, training))


@every
@both
def test_the_result_is_a_batch_of_its_own(augment, training):
    batch = _batch()
    augment(batch, _draws(augment, training))["new"] = batch["label"]
    assert list(batch) == ["index", "image", "label"]


@every
@both
def test_the_same_numbers_give_the_same_batch(augment, training):
    numbers = _draws(augment, training)
    assert _equal(augment(_batch(), numbers), augment(_batch(), numbers))


@alone
@both
def test_a_record_does_not_depend_on_its_batch(augment, training):
    batch, numbers = _batch(), _draws(augment, training)
    together = augment(batch, numbers)
    for i in range(6):
        alone = augment(
            {name: tensor[i : i + 1] for name, tensor in batch.items()},
            None if numbers is None else numbers[i : i + 1],
        )
        assert _equal(alone, {name: tensor[i : i + 1] for name, tensor in together.items()})


@alone
@both
def test_index_and_label_stay_and_no_record_is_lost(augment, training):
    batch, actual = _batch(), augment(_batch(), _draws(augment, training))
    assert torch.equal(actual["index"], batch["index"])
    assert torch.equal(actual["label"], batch["label"])
    assert actual["image"].shape == batch["image"].shape


@every
def test_the_number_of_draws_says_whether_training_is_random(augment):
    results = [
        augment(_batch(), _draws(augment, training=True, epoch=epoch))["image"]
        for epoch in range(3)
    ]
    assert isinstance(augment.num_draws, int)
    assert (augment.num_draws > 0) == any(not torch.equal(results[0], result) for result in results)


@every
def test_the_global_random_numbers_are_neither_used_nor_moved(augment):
    state = torch.get_rng_state()
    augment(_batch(), _draws(augment, training=True))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@exact
@both
def test_the_numbers_are_the_same_on_any_device(augment, training):
    device, numbers = torch.device("cuda"), _draws(augment, training)
    batch = {name: tensor.to(device) for name, tensor in _batch().items()}
    actual = augment(batch, None if numbers is None else numbers.to(device))
    assert all(
        torch.equal(actual[name].cpu(), tensor)
        for name, tensor in augment(_batch(), numbers).items()
    )


@pytest.mark.parametrize("augment", MIXING, ids=lambda augment: type(augment).__name__)
def test_mixing_depends_on_the_partner_and_no_other_record(augment):
    batch, numbers = _batch(), _draws(augment, training=True)
    together = augment(batch, numbers)
    for i in range(6):
        pair = [(i - 1) % 6, i]
        apart = augment({name: tensor[pair] for name, tensor in batch.items()}, numbers[pair])
        assert _equal(
            {name: tensor[1] for name, tensor in apart.items()},
            {name: tensor[i] for name, tensor in together.items()},
        )


@every
def test_images_are_of_one_kind_in_training_and_outside(augment):
    kinds = {
        augment(_batch(), _draws(augment, training))["image"].dtype for training in (False, True)
    }
    assert len(kinds) == 1
