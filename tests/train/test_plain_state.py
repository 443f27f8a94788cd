"""What a saved state may hold."""

import pytest
import torch

from framework.train.checkpoint import foreign_value, is_plain

STRANGE = {
    "sparse": torch.ones(2).to_sparse(),
    "meta": torch.empty(2, device="meta"),
    "a class of its own": torch.ones(2).as_subclass(type("Own", (torch.Tensor,), {})),
}


@pytest.mark.parametrize("value", STRANGE.values(), ids=STRANGE)
def test_a_tensor_that_could_not_be_checked_is_not_plain(value):
    assert not is_plain([value])
    assert "the model's weight is " in foreign_value({}, {"weight": value})
