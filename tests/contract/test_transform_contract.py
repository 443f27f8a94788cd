import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.data.decode import cut
from framework.order import draws
from framework.transform.none import NoTransform
from framework.transform.random_resized_crop import RandomResizedCrop
from framework.transform.resize import Resize
from tests.contract.cases import pixels

TRANSFORMS = [
    NoTransform(),
    Resize([8, 6]),
    Resize([1, 300]),
    RandomResizedCrop([8, 6], [0.08, 1.0], [3 / 4, 4 / 3], 0.5),
    RandomResizedCrop([5, 5], [0.01, 0.02], [0.1, 10.0], 1.0),
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
    assert set(flip.tolist()) <= {0, 1}


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
    alone = [transform.windows(sizes[i : i + 1], None if numbers is None else numbers[i : i + 1]) for i in range(3)]
    assert torch.equal(together, torch.cat(alone))


@every
def test_outside_training_nothing_is_flipped(transform):
    assert transform.windows(torch.tensor([[30, 40]] * 20), None)[:, 4].tolist() == [0] * 20


@every
@both
def test_every_result_has_the_promised_size(transform, training):
    image = pixels(0, 30, 40)
    window = transform.windows(torch.tensor([[30, 40]]), _draws(transform, 1, training))[0].tolist()
    assert cut(image, tuple(window), transform.size).shape == (3, *(transform.size or tuple(window[2:4])))


@every
def test_the_number_of_draws_is_a_number(transform):
    assert isinstance(transform.num_draws, int)
    assert transform.num_draws >= 0
