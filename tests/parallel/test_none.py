import torch
from torch import nn

from framework.parallel.none import NoParallel

CPU = torch.device("cpu")


def test_it_is_one_replica_on_the_device_it_was_given():
    parallel = NoParallel(device=torch.device("meta"))
    assert (parallel.rank, parallel.world_size, parallel.device.type, parallel.notes) == (
        0,
        1,
        "meta",
        (),
    )


def test_gradients_of_passes_add_up():
    parallel, model = NoParallel(device=CPU), nn.Linear(1, 1)
    for last in (False, True):
        with parallel.accumulate(model, last):
            model(torch.ones(1, 1)).sum().backward()
    assert model.weight.grad.tolist() == [[2.0]]
