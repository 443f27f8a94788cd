"""What one rank finds when it uses any Parallel, here or in a rank's own process."""

import time

import torch
from torch import nn

PASSES = 3


def passes(rank):
    """Return this rank's inputs, a pass at a time: small whole numbers, whose sums are exact."""
    return [torch.tensor([[float(1 + number), float(10 * rank)]]) for number in range(PASSES)]


def own_gradient(rank, number):
    """Return the gradient of one pass alone."""
    return passes(rank)[number][0].tolist()


def facts_of(parallel):
    torch.manual_seed(parallel.rank)
    model = nn.Linear(2, 1, bias=False)
    wrapped = parallel.wrap(model)
    result = {
        "rank": parallel.rank,
        "world_size": parallel.world_size,
        "device": str(parallel.device),
        "notes": list(parallel.notes),
        "is_inside": parallel.unwrap(wrapped) is model,
        "names": list(parallel.unwrap(wrapped).state_dict()),
        "start": model.weight.detach().tolist(),
        "same_output": computes_the_same(wrapped, model),
        "gradients": train(parallel, wrapped),
        "end": model.weight.detach().tolist(),
        **numbers(parallel),
    }
    parallel.close()
    parallel.close()
    return result


@torch.no_grad()
def computes_the_same(wrapped, model):
    return torch.equal(wrapped(torch.ones(1, 2)), model(torch.ones(1, 2)))


def train(parallel, wrapped):
    """Take one optimizer step over all passes, and return the gradient after each pass."""
    optimizer, seen = torch.optim.SGD(wrapped.parameters(), lr=1.0), []
    optimizer.zero_grad()
    for number, x in enumerate(passes(parallel.rank)):
        with parallel.accumulate(wrapped, number == PASSES - 1):
            wrapped(x).sum().backward()
        seen.append(parallel.unwrap(wrapped).weight.grad[0].tolist())
    optimizer.step()
    return seen


def numbers(parallel):
    """Return totals, gathered numbers, waits, and agreements; the last rank stops from 4 on."""
    sums = torch.tensor([1.0 + parallel.rank, 2.0**53 - 1], dtype=torch.float64)
    total = parallel.total(sums)
    last = parallel.rank == parallel.world_size - 1
    return {
        "total": total.tolist(),
        "total_kind": [str(total.dtype), str(total.device)],
        "total_of_none": parallel.total(torch.zeros(0, dtype=torch.float64)).tolist(),
        "gathered": [
            item.tolist()
            for item in parallel.gather(torch.full((parallel.rank + 1,), float(parallel.rank)))
        ],
        "waited": waited(parallel),
        "agreed": [parallel.agree(last and step >= 3, False) for step in range(40)],
    }


def waited(parallel):
    """Return when this rank came to a wait, and when it passed; rank 0 comes late."""
    if parallel.rank == 0:
        time.sleep(0.2)
    arrived_s = time.monotonic()
    parallel.wait()
    return arrived_s, time.monotonic()
