import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.order.draws import ON_HOST, DeviceDraws, draws, key_of, keyed_draws, record_seeds

INDICES = st.lists(st.integers(0, 2**31), min_size=1, max_size=20)
SEEDS = st.integers(0, 2**40)


def test_the_draws_of_one_seed_never_change():
    expected = [[0.5366186499595642, 0.9035539627075195], [0.2646855115890503, 0.13924485445022583]]
    assert draws(torch.tensor([0, 1]), seed=5, epoch=2, num_draws=2).tolist() == expected


@given(INDICES, SEEDS, st.integers(-1, 99), st.integers(1, 6))
def test_draws_and_seeds_belong_to_the_record_and_not_to_its_batch(indices, seed, epoch, num_draws):
    together = draws(torch.tensor(indices), seed, epoch, num_draws)
    seeds = record_seeds(torch.tensor(indices), seed, epoch)
    assert (together.shape, together.dtype) == ((len(indices), num_draws), torch.float32)
    assert int(seeds.min()) >= 0
    for place, index in enumerate(indices):
        alone = torch.tensor([index])
        assert torch.equal(together[place], draws(alone, seed, epoch, num_draws)[0])
        assert int(seeds[place]) == int(record_seeds(alone, seed, epoch))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9), SEEDS, st.integers(1, 31))
def test_compiled_draws_are_those_of_operators(records, seed, num_draws):
    indices = torch.tensor(records, dtype=torch.int64)
    by_operators = keyed_draws(indices, key_of(seed, 3, ON_HOST), num_draws)
    assert torch.equal(draws(indices, seed, 3, num_draws, ON_HOST), by_operators)


@pytest.mark.parametrize("epoch", range(3))
def test_alternating_draws_are_those_of_epoch_0_and_their_mirror_images(epoch):
    indices = torch.arange(100)
    numbers = DeviceDraws(7, 3, (0, 2))
    drawn = numbers.of(indices, *numbers.keys(epoch))
    first = draws(indices, 7, 0, 3)
    if epoch % 2:
        first = 1 - 2**-24 - first
    assert torch.equal(drawn[:, 1], draws(indices, 7, epoch, 3)[:, 1])
    assert torch.equal(drawn[:, [0, 2]], first[:, [0, 2]])
    assert drawn.min() >= 0
    assert drawn.max() < 1
