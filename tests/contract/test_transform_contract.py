import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.contracts.data import may_turn
from framework.contracts.records import Field
from framework.data.reader import BatchReader, Request
from framework.order.draws import draws
from framework.store.hdf5_store import HDF5Store
from framework.transform.center_crop import CenterCrop
from framework.transform.compose import ComposeTransform
from framework.transform.flip import FlipTransform
from framework.transform.function import FunctionTransform
from framework.transform.none import NoTransform
from framework.transform.opencv import OpenCVTransform
from framework.transform.random_crop import RandomCrop
from framework.transform.random_resized_crop import RandomResizedCrop
from framework.transform.resize import Resize
from framework.transform.rotate import Rotate
from framework.transform.shorter_side import ShorterSide
from framework.transform.sound_window import SoundWindow
from framework.transform.video_window import VideoWindow
from tests.conftest import make_context, write_store
from tests.contract.cases import jpeg, pixels


def noisy(images, rng):
    number = rng.integers(1, 256, dtype=np.uint8)
    return {name: image ^ number for name, image in images.items()}


TRANSFORMS = [
    NoTransform(),
    Resize([8, 6], True, True),
    Resize([1, 300], False, False),
    CenterCrop([8, 6], 10, True),
    FlipTransform(0.5, 0.5),
    RandomCrop([1, 1], 0.5, 0.5),
    RandomResizedCrop([8, 6], [0.08, 1.0], [3 / 4, 4 / 3], 0.5, 0.0, True),
    RandomResizedCrop([5, 5], [0.01, 0.02], [0.1, 10.0], 1.0, 0.5, False),
    FunctionTransform(noisy, RandomCrop([1, 1], 0.5, 0.5), False),
    OpenCVTransform(4, 0.5),
    SoundWindow(5),
    VideoWindow(4, 2),
    Rotate([0, 1, 2, 3]),
    ComposeTransform(
        {
            "scale": ShorterSide(12, True),
            "crop": RandomCrop([9, 7], 0.0, 0.0),
            "flip": FlipTransform(0.5, 0.5),
        }
    ),
    ComposeTransform({"clip": VideoWindow(4, 2), "flip": FlipTransform(0.5, 0.5)}),
    ComposeTransform({"turn": Rotate([0, 1, 2, 3]), "size": Resize([8, 6], True, True)}),
    ComposeTransform(
        {
            "turn": Rotate([0, 1, 3]),
            "flip": FlipTransform(0.5, 0.5),
            "crop": RandomCrop([1, 1], 0.5, 0.5),
            "function": FunctionTransform(noisy, NoTransform(), False),
        }
    ),
]
SIZES = st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), min_size=1, max_size=6)
both = pytest.mark.parametrize("training", [False, True])
every = pytest.mark.parametrize("transform", TRANSFORMS)


def _draws(transform, count, training, epoch=0):
    return draws(torch.arange(count), 0, epoch, transform.num_draws) if training else None


@every
@both
@given(sizes=SIZES, epoch=st.integers(0, 50))
def test_windows_lie_inside_their_images(transform, training, sizes, epoch):
    sizes = torch.tensor(sizes)
    windows = transform.windows(sizes, _draws(transform, len(sizes), training, epoch))
    corner, extent, flip = windows[:, :2], windows[:, 2:4], windows[:, 4]
    assert (windows.dtype, windows.shape) == (torch.int64, (len(sizes), 5))
    assert bool((corner >= 0).all() and (extent >= 1).all() and (corner + extent <= sizes).all())
    assert set(flip.tolist()) <= set(range(8 if may_turn(transform) else 4))


@every
@both
def test_the_same_numbers_give_the_same_windows(transform, training):
    sizes = torch.tensor([[30, 40], [7, 5]])
    numbers = _draws(transform, 2, training)
    assert torch.equal(transform.windows(sizes, numbers), transform.windows(sizes, numbers))


@every
@both
def test_what_it_is_given_stays_as_it_was(transform, training):
    sizes, numbers = torch.tensor([[30, 40], [7, 5]]), _draws(transform, 2, training)
    copies = sizes.clone(), None if numbers is None else numbers.clone()
    transform.windows(sizes, numbers).fill_(9)
    assert torch.equal(sizes, copies[0])
    assert numbers is None or torch.equal(numbers, copies[1])


@every
@both
def test_a_window_does_not_depend_on_its_batch(transform, training):
    sizes, numbers = torch.tensor([[30, 40], [7, 5], [90, 20]]), _draws(transform, 3, training)
    together = transform.windows(sizes, numbers)
    alone = [
        transform.windows(sizes[i : i + 1], None if numbers is None else numbers[i : i + 1])
        for i in range(3)
    ]
    assert torch.equal(together, torch.cat(alone))


@every
def test_outside_training_nothing_is_flipped(transform):
    assert transform.windows(torch.tensor([[30, 40]] * 20), None)[:, 4].tolist() == [0] * 20


@every
@both
def test_every_window_lies_in_its_image(transform, training):
    windows = transform.windows(torch.tensor([[30, 40]]), _draws(transform, 1, training))
    top, left, height, width, _ = windows[0].tolist()
    assert 0 <= top < top + height <= 30
    assert 0 <= left < left + width <= 40


@every
def test_the_number_of_draws_is_a_number(transform):
    assert isinstance(transform.num_draws, int)
    assert transform.num_draws >= 0


@every
def test_it_can_be_sent_to_another_process(transform):
    sizes, numbers = torch.tensor([[30, 40]]), _draws(transform, 1, training=True)
    assert torch.equal(
        pickle.loads(pickle.dumps(transform)).windows(sizes, numbers),
        transform.windows(sizes, numbers),
    )


@every
def test_a_function_depends_on_the_seed_alone(transform):
    image = {"image": pixels(0)}
    if transform.function is not None:
        assert np.array_equal(
            transform.function(image, 3)["image"], transform.function(image, 3)["image"]
        )
        assert not np.array_equal(
            transform.function(image, 3)["image"], transform.function(image, 4)["image"]
        )


@every
def test_whether_shrinking_averages_is_said(transform):
    assert isinstance(transform.antialias, bool)


@every
@pytest.mark.parametrize("raw", [False, True])
def test_a_pair_is_read_with_the_same_change(transform, raw):
    images = [jpeg(0) for _ in range(4)]
    field = Field("uint8", (3, None, None), "image")
    if raw:
        images, field = (
            np.stack([pixels(number).transpose(2, 0, 1) for number in range(4)]),
            Field("uint8", (3, 16, 12)),
        )
    path = write_store(
        "pair.h5", {"blurry": images, "sharp": images}, {"blurry": field, "sharp": field}
    )
    read = BatchReader(HDF5Store(path), make_context(transform=transform))
    for epoch in range(3):  # one record at a time: a transform without a size gives many
        for index in range(4):
            batch = read(Request(epoch, torch.tensor([index]), training=True))
            assert torch.equal(batch["blurry"], batch["sharp"])
    read.store.close()
