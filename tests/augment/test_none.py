import torch

from framework.augment.none import NoAugment


def test_every_field_is_the_one_that_came():
    batch = {"index": torch.arange(2), "x": torch.rand(2, 3)}
    result = NoAugment()(batch, None)
    assert list(result) == ["index", "x"]
    assert all(result[name] is batch[name] for name in batch)


def test_nothing_is_drawn():
    assert NoAugment().num_draws == 0
