from importlib.util import find_spec

import pytest
import torch

from framework.augment import color_jitter, compose, cutmix, kornia, mixup, mixup_cutmix, none
from framework.augment.crop_flip import CropFlip
from framework.augment.flip import Flip
from framework.augment.normalize import Normalize
from framework.augment.random_erasing import RandomErasing
from framework.contracts.data import traits_of
from framework.order.draws import draws

STEPS = [{"name": "RandomAffine", "params": {"degrees": 30.0}}, {"name": "RandomErasing"}]


def normalize(fields):
    return Normalize(fields, [0.5], [0.5])


def jitter(fields):
    return color_jitter.ColorJitter(fields, 0.4, 0.4, 0.4, 0.1)


def erasing(fields):
    return RandomErasing(fields, 0.5, [0.02, 0.33], [0.3, 3.3], [0.0])


def flip(fields):
    return Flip(fields, 0.5, 0.5)


ALONE = {  # by name: makes the augment of some fields
    "none": lambda fields: none.NoAugment(),
    "normalize": normalize,
    "crop_flip": lambda fields: CropFlip(fields, 2, 0.5, [0.4, 0.5, 0.6], [0.2, 0.2, 0.3]),
    "crop_flip, bytes": lambda fields: CropFlip(fields, 3, 0.5, None, None),
    "crop_flip, reflected": lambda fields: CropFlip(
        fields, 2, 0.5, [0.5], [0.2], "reflect", alternate=True
    ),
    "flip": flip,
    "flip, alternating": lambda fields: Flip(fields, 0.5, 0.5, alternate=True),
    "color_jitter": jitter,
    "random_erasing": erasing,
    "compose": lambda fields: compose.Compose(
        {
            "flip": flip(fields),
            "jitter": jitter(fields),
            "normalize": normalize(fields),
            "erase": erasing(fields),
        }
    ),
}
MIXING = {  # a record's partner is in its batch
    "mixup": lambda fields: mixup.Mixup(fields, "label", 3, 0.3, 0.8),
    "cutmix": lambda fields: cutmix.CutMix(fields, "label", 3, 1.0, 0.8),
    "mixup_cutmix": lambda fields: mixup_cutmix.MixupCutMix(fields, "label", 3, 0.3, 1.0, 0.8, 0.5),
}
KORNIA = {"kornia": lambda names: kornia.Kornia(names, STEPS, False)} if find_spec("kornia") else {}
EVERY = {**ALONE, **MIXING, **KORNIA}
every = pytest.mark.parametrize("name", EVERY)
both = pytest.mark.parametrize("training", [False, True])


def batch_of(count=6):
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (count, 3, 5, 7), dtype=torch.uint8, generator=generator)
    return {"index": torch.arange(count), "image": image, "label": torch.arange(count) % 3}


def draws_of(augment, training=True, epoch=0):
    return draws(torch.arange(6), 0, epoch, augment.num_draws) if training else None


def equal(first, second):
    pairs = zip(first.values(), second.values(), strict=True)
    return list(first) == list(second) and all(torch.equal(*pair) for pair in pairs)


@every
def test_an_augment_says_whether_it_is_exact_and_which_draws_alternate(name):
    augment = EVERY[name]("image")
    assert traits_of(augment).exact == (name != "kornia")
    assert set(traits_of(augment).alternating) <= set(range(augment.num_draws))
    assert compose.Compose({"part": augment}).exact == traits_of(augment).exact


@every
@both
def test_the_same_numbers_give_the_same_batch_and_the_given_one_stays(name, training):
    augment, batch, state = EVERY[name]("image"), batch_of(), torch.get_rng_state()
    numbers = draws_of(augment, training)
    result = augment(batch, numbers)
    assert equal(result, augment(batch_of(), numbers))
    result["new"] = batch["label"]
    assert equal(batch, batch_of())
    assert numbers is None or torch.equal(numbers, draws_of(augment))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", ALONE | KORNIA)
@both
def test_a_record_does_not_depend_on_its_batch_and_its_label_stays(name, training):
    augment, batch = EVERY[name]("image"), batch_of()
    numbers = draws_of(augment, training)
    together = augment(batch, numbers)
    for i in range(6):
        own = None if numbers is None else numbers[i : i + 1]
        alone = augment({key: tensor[i : i + 1] for key, tensor in batch.items()}, own)
        assert equal(alone, {key: tensor[i : i + 1] for key, tensor in together.items()})
    assert torch.equal(together["index"], batch["index"])
    assert torch.equal(together["label"], batch["label"])
    assert together["image"].shape == batch["image"].shape


@pytest.mark.parametrize("name", MIXING)
def test_mixing_depends_on_the_partner_and_no_other_record(name):
    augment, batch = EVERY[name]("image"), batch_of()
    numbers = draws_of(augment)
    together = augment(batch, numbers)
    for i in range(6):
        pair = [(i - 1) % 6, i]
        apart = augment({key: tensor[pair] for key, tensor in batch.items()}, numbers[pair])
        assert all(torch.equal(tensor[1], together[key][i]) for key, tensor in apart.items())


@pytest.mark.parametrize("name", ALONE | MIXING)
@both
def test_several_fields_are_changed_alike(name, training):
    augment, batch = EVERY[name](["image", "other"]), batch_of()
    numbers = draws_of(augment, training)
    result = augment({**batch, "other": batch["image"].clone()}, numbers)
    assert torch.equal(result["image"], result["other"])
    assert equal(EVERY[name]("image")(batch, numbers), {key: result[key] for key in batch})


@every
def test_the_number_of_draws_says_whether_training_is_random_and_the_kind_of_pixels_stays(name):
    augment = EVERY[name]("image")
    results = [augment(batch_of(), draws_of(augment, epoch=epoch))["image"] for epoch in range(3)]
    assert isinstance(augment.num_draws, int)
    assert (augment.num_draws > 0) == any(not torch.equal(results[0], result) for result in results)
    assert augment(batch_of(), None)["image"].dtype == results[0].dtype


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", ALONE | MIXING)
@both
def test_the_numbers_are_the_same_on_any_device(name, training):
    augment, device = EVERY[name]("image"), torch.device("cuda")
    numbers = draws_of(augment, training)
    batch = {key: tensor.to(device) for key, tensor in batch_of().items()}
    actual = augment(batch, None if numbers is None else numbers.to(device))
    expected = augment(batch_of(), numbers)
    assert equal({key: tensor.cpu() for key, tensor in actual.items()}, expected)
