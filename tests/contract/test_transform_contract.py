import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.contracts.records import Field
from framework.data.reader import BatchReader, Request
from framework.order.draws import draws
from framework.store.hdf5_store import HDF5Store
from framework.transform import center_crop, opencv
from framework.transform.compose import ComposeTransform
from framework.transform.flip import FlipTransform
from framework.transform.function import FunctionTransform
from framework.transform.none import NoTransform
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


FLIP = FlipTransform(0.5, 0.5)
ONE = RandomCrop([1, 1], 0.5, 0.5)
TURN = Rotate([0, 1, 2, 3])
SCALE = Resize([8, 6], True, True)
EVERY = {
    "none": NoTransform(),
    "resize": SCALE,
    "resize, wide": Resize([1, 300], False, False),
    "center_crop": center_crop.CenterCrop([8, 6], 10, True),
    "flip": FLIP,
    "random_crop": ONE,
    "random_resized_crop": RandomResizedCrop([8, 6], [0.08, 1], [3 / 4, 4 / 3], 0.5, 0, True),
    "random_resized_crop, tiny": RandomResizedCrop([5, 5], [0.01, 0.02], [0.1, 10], 1, 0.5, False),
    "function": FunctionTransform(noisy, ONE, False),
    "opencv": opencv.OpenCVTransform(4, 0.5),
    "sound_window": SoundWindow(5),
    "video_window": VideoWindow(4, 2),
    "rotate": TURN,
    "scale, crop, flip": ComposeTransform(
        {"scale": ShorterSide(12, True), "crop": RandomCrop([9, 7], 0.0, 0.0), "flip": FLIP}
    ),
    "clip, flip": ComposeTransform({"clip": VideoWindow(4, 2), "flip": FLIP}),
    "turn, resize": ComposeTransform({"turn": TURN, "size": SCALE}),
    "turn, flip, crop, function": ComposeTransform(
        {
            "turn": Rotate([0, 1, 3]),
            "flip": FLIP,
            "crop": ONE,
            "function": FunctionTransform(noisy, NoTransform(), False),
        }
    ),
}
OF_OTHERS = ("sound_window", "video_window", "clip, flip")  # of no images
SIZES = st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), min_size=1, max_size=6)
every = pytest.mark.parametrize("name", EVERY)
both = pytest.mark.parametrize("training", [False, True])


def draws_of(transform, count, training=True, epoch=0):
    return draws(torch.arange(count), 0, epoch, transform.num_draws) if training else None


@every
@both
@given(sizes=SIZES, epoch=st.integers(0, 50))
def test_windows_lie_inside_their_images(name, training, sizes, epoch):
    transform, sizes = EVERY[name], torch.tensor(sizes)
    windows = transform.windows(sizes, draws_of(transform, len(sizes), training, epoch))
    corner, extent, flip = windows[:, :2], windows[:, 2:4], windows[:, 4]
    assert (windows.dtype, windows.shape) == (torch.int64, (len(sizes), 5))
    assert bool((corner >= 0).all() and (extent >= 1).all() and (corner + extent <= sizes).all())
    most = 1
    if training:
        most = 8 if transform.turns else 4
    assert set(flip.tolist()) <= set(range(most))


@every
@both
def test_a_window_depends_on_size_and_numbers_alone(name, training):
    transform, sizes = EVERY[name], torch.tensor([[30, 40], [7, 5], [90, 20]])
    numbers = draws_of(transform, 3, training)
    together = transform.windows(sizes, numbers)
    own = [None] * 3 if numbers is None else numbers.split(1)
    alone = [transform.windows(size, draw) for size, draw in zip(sizes.split(1), own, strict=True)]
    assert torch.equal(together, torch.cat(alone))
    sent = pickle.loads(pickle.dumps(transform))
    assert torch.equal(sent.windows(sizes, numbers), together)
    together.fill_(9)  # what was given stays as it was
    assert sizes.tolist() == [[30, 40], [7, 5], [90, 20]]
    assert numbers is None or torch.equal(numbers, draws_of(transform, 3))


@every
def test_a_transform_says_its_number_of_draws_and_whether_shrinking_averages(name):
    transform = EVERY[name]
    assert isinstance(transform.num_draws, int)
    assert transform.num_draws >= 0
    assert isinstance(transform.antialias, bool)


@every
def test_a_function_depends_on_the_seed_alone_also_in_another_process(name):
    function, images = EVERY[name].function, {"image": pixels(0)}
    if function is not None:
        sent = pickle.loads(pickle.dumps(function))
        first, again, other = function(images, 3), sent(images, 3), function(images, 4)
        assert np.array_equal(first["image"], again["image"])
        assert not np.array_equal(first["image"], other["image"])


@pytest.mark.parametrize("name", [name for name in EVERY if name not in OF_OTHERS])
@pytest.mark.parametrize("raw", [False, True], ids=["files", "raw"])
def test_a_pair_is_read_with_the_same_change(name, raw):
    images, field = [jpeg(0)] * 4, Field("uint8", (3, None, None), "image")
    if raw:
        images = np.stack([pixels(number).transpose(2, 0, 1) for number in range(4)])
        field = Field("uint8", (3, 16, 12))
    pair = {"blurry": images, "sharp": images}
    path = write_store("pair.h5", pair, dict.fromkeys(pair, field))
    read = BatchReader(HDF5Store(path), make_context(transform=EVERY[name]))
    for epoch in range(3):  # one record at a time: a transform without a size gives many
        for index in range(4):
            batch = read(Request(epoch, torch.tensor([index]), training=True))
            assert torch.equal(batch["blurry"], batch["sharp"])
    read.store.close()
