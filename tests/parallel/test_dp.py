import pytest
import torch
from torch import nn

from framework.parallel import dp, none

CPU = torch.device("cpu")


def test_without_two_gpus_it_is_one_replica_and_says_so():
    parallel, model = dp.DataParallel(device=CPU), nn.Linear(2, 2)
    assert parallel.wrap(model) is model
    assert parallel.num_replicas == 1
    assert len(parallel.notes) == 1
    assert "one replica" in parallel.notes[0]


def test_the_model_inside_has_the_plain_names():
    inside = nn.Linear(2, 2)
    outside = nn.DataParallel(inside)
    assert dp.DataParallel(device=CPU).unwrap(outside) is inside
    assert dp.DataParallel(device=CPU).unwrap(inside) is inside


@pytest.mark.parametrize("kind", [none.NoParallel, dp.DataParallel])
def test_gradients_of_passes_add_up(kind):
    parallel, model = kind(device=CPU), nn.Linear(1, 1)
    for last in (False, True):
        with parallel.accumulate(model, last):
            parallel.wrap(model)(torch.ones(1, 1)).sum().backward()
    assert model.weight.grad.tolist() == [[2.0]]
    assert (parallel.rank, parallel.world_size, parallel.device) == (0, 1, CPU)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs here")
def test_with_two_gpus_each_takes_its_slice():
    device = torch.device("cuda", 0)
    parallel, model = dp.DataParallel(device=device), nn.Linear(4, 3).to(device)
    x = torch.randn(8, 4, device=device)
    wrapped = parallel.wrap(model)
    assert isinstance(wrapped, nn.DataParallel)
    assert "parallel=ddp does neither" in parallel.notes[0]
    torch.testing.assert_close(wrapped(x), model(x))
    with torch.autocast("cuda", torch.bfloat16):
        assert wrapped(x).dtype == torch.bfloat16
    second = torch.device("cuda", 1)
    moved = dp.DataParallel(device=second).wrap(nn.Linear(4, 3).to(second))
    assert moved(x.to(second)).device == second
