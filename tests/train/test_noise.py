"""Noise for objectives: each record has its own, however batches are cut."""

import pytest
import torch

from framework.train.noise import VALIDATION, key_noise, noise_of, record_noise

INDEX = torch.arange(1000)


@pytest.fixture(autouse=True)
def _keyed():
    key_noise(3, 5)
    yield
    key_noise(0, VALIDATION)


def of(index, *shape, **use):
    return record_noise({"index": index}, *shape, **use)


@pytest.mark.parametrize("shape", [(7,), (2, 3, 3), (1,), ()])
def test_a_record_has_the_same_noise_in_every_batch(shape):
    whole = of(INDEX, *shape)
    assert whole.shape == (1000, *shape)
    assert whole.dtype == torch.float32
    for part in INDEX.flip(0).split(37):
        assert torch.equal(of(part, *shape), whole[part])


def test_it_is_normal_and_independent():
    noise = of(INDEX, 100)
    assert abs(noise.mean()) < 0.02
    assert abs(noise.std() - 1) < 0.02
    assert torch.corrcoef(noise.T).fill_diagonal_(0).abs().max() < 0.2


def test_seeds_epochs_uses_and_validation_have_noise_of_their_own():
    first = of(INDEX, 4)
    others = [of(INDEX, 4, use=1)]
    with noise_of(VALIDATION):
        others.append(of(INDEX, 4))
    assert torch.equal(of(INDEX, 4), first)  # as it was before
    for place in ((3, 6), (4, 5)):
        key_noise(*place)
        others.append(of(INDEX, 4))
    key_noise(4, VALIDATION)
    others.append(of(INDEX, 4))
    for number, own in enumerate(others):
        assert not torch.equal(own, first)
        assert all(not torch.equal(own, other) for other in others[:number])
