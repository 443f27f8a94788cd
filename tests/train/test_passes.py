import torch

from framework.objective.classify import Classify
from framework.parallel.none import NoParallel
from framework.precision.fp32 import FP32
from framework.train.passes import Passes
from tests.fakes import CPU, FakeClock, make_data, make_model


def test_gradients_of_passes_add_up_by_their_weights():
    model, data, clock = make_model(), make_data(6), FakeClock()
    passes = Passes(
        model,
        Classify("x", "y", 0.0),
        NoParallel(device=CPU),
        FP32(tf32=False, device=CPU),
        clock.mark,
    )
    whole = torch.autograd.grad(passes.objective(model, data).loss, list(model.parameters()))
    for part, last in ((slice(0, 2), False), (slice(2, 6), True)):
        count = part.stop - part.start
        outcome = passes({name: one[part] for name, one in data.items()}, count / 6, last)
        assert outcome.count == count
    for parameter, gradient in zip(model.parameters(), whole, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    assert clock.marks == ["forward", "backward"] * 2
