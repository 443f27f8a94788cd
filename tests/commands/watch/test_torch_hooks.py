"""The hooks see every event of a training loop, and leave nothing behind."""

import time
from threading import Thread

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.data import DataLoader, IterableDataset, dataloader

from framework.contracts.span import shares
from tests.commands.watch.loops import PAUSE_S, Pausing, hooked, loader, train, validate


def largest(hooks):
    known = shares({n: s for n, s in hooks.spans().items() if n != "outside"})
    return max(known, key=lambda name: known[name])


@pytest.mark.parametrize("workers", [0, 1])
def test_slow_items_are_waiting(workers):
    with hooked() as hooks:
        train(loader(delay_s=PAUSE_S, num_workers=workers), Pausing())
    assert largest(hooks) == "wait"


class Unsized(IterableDataset):
    """Items in their order, whose number nobody knows before the end."""

    def __iter__(self):
        for index in range(8):
            yield torch.full((3,), float(index)), index % 2


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_without_a_length_is_watched(workers):
    with hooked() as hooks:
        train(DataLoader(Unsized(), batch_size=2, num_workers=workers), Pausing(), epochs=2)
    assert hooks.counts.epochs == 2
    assert hooks.counts.steps == 7  # of eight: the first one is not measured


def test_a_slow_optimizer_is_optimizer():
    optimizer_step = torch.optim.SGD.step
    with hooked() as hooks:
        model = Pausing()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        optimizer.register_step_pre_hook(lambda *_: time.sleep(PAUSE_S))
        for inputs, labels in loader():
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    assert torch.optim.SGD.step is optimizer_step
    assert largest(hooks) == "optimizer"


def test_mixed_precision_with_a_scaler_is_watched():
    model, scaler = Pausing(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with hooked() as hooks:
        for inputs, labels in loader(20):
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(inputs), labels)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    assert hooks.counts.steps == 9
    assert hooks.spans()["optimizer"].total_s > 0


def test_a_closure_keeps_forward_and_backward():
    with hooked() as hooks:
        model = Pausing(PAUSE_S)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for inputs, labels in loader():

            def closure():
                loss = nn.functional.cross_entropy(model(inputs), labels)  # noqa: B023
                loss.backward()
                return loss

            optimizer.step(closure)
    assert largest(hooks) == "forward"


def test_validation_is_distinguished_by_the_mode_of_the_model():
    model = Pausing()
    with hooked() as hooks:
        for _ in range(2):
            train(loader(), model)
            validate(loader(4, PAUSE_S), model)
    spans = hooks.spans()
    assert spans["validation"].total_s > 8 * PAUSE_S
    assert spans["wait"].total_s < 8 * PAUSE_S
    assert hooks.counts.steps == 7  # all but the first
    assert hooks.counts.epochs == 2


def test_accumulated_batches_are_one_step():
    with hooked() as hooks:
        train(loader(16), Pausing(), accumulate=4)
    assert hooks.counts.steps == 1
    assert hooks.counts.records == 8


def test_inner_modules_are_called_without_hooks():
    seen = []
    model = Pausing()
    model.inner.register_forward_hook(
        lambda *_: seen.append(len(torch_module._global_forward_pre_hooks))
    )
    with hooked() as hooks:
        train(loader(), model)
    assert set(seen) == {0}
    assert hooks.root is model


def hooked_functions():
    iterator = dataloader._BaseDataLoaderIter
    ends = (torch.autograd.backward, torch.Tensor.item)
    return (DataLoader.__iter__, iterator.__next__, iterator.__init__, *ends)


def test_everything_is_put_back():
    before = hooked_functions()
    with hooked():
        train(loader(20), Pausing())
    assert hooked_functions() == before
    assert not torch_module._global_forward_pre_hooks


def test_after_so_many_steps_the_hooks_are_gone():
    steps = []
    with hooked(num_steps=3, finish=lambda: steps.append(1)) as hooks:
        train(loader(40), Pausing(), epochs=2)
    assert steps == [1]
    assert hooks.counts.steps == 3


@pytest.mark.slow
def test_a_compiled_model_is_one_call():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()  # of other tests
    model = torch.compile(nn.Linear(3, 2), backend="eager")
    with hooked() as hooks:
        train(loader(), model, epochs=3)
    assert hooks.root is model
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
    torch._dynamo.reset()


def test_batches_of_other_threads_are_not_steps():
    with hooked() as hooks:
        thread = Thread(target=train, args=(loader(), Pausing()))
        thread.start()
        thread.join()
    assert hooks.counts.steps == 0


def test_the_line_that_takes_a_step_is_named():
    with hooked() as hooks:
        train(loader(60), Pausing(), between=lambda: time.sleep(0.02))
    (line, *_) = hooks.sampler.largest_lines("step", 3, 0.1)
    assert (line.part, line.function) == ("step", "<lambda>")
    assert line.share > 0.5
    assert "time.sleep" in line.text


def test_validation_between_steps_is_no_part_of_a_step():
    model = Pausing()

    def check():
        validate(loader(2, delay_s=0.02), model)
        model.train()

    with hooked() as hooks:
        train(loader(30), model, between=check)
    lines = hooks.sampler.largest_lines("step", 3, 0.0)
    assert "__getitem__" not in [line.function for line in lines]


def test_the_records_of_a_step_that_does_not_end_are_not_counted():
    with hooked() as hooks:
        train(loader(6), Pausing())
        next(iter(loader()))
    assert (hooks.counts.steps, hooks.counts.records) == (2, 4)
    assert hooks.counts.first_s > 0  # the first step is not measured
    assert set(hooks.spans()) >= {"wait", "copy", "forward", "backward", "optimizer", "other"}


def test_steps_without_an_optimizer_of_torch_end_with_backward():
    model = Pausing()
    with hooked() as hooks:
        for inputs, _ in loader(6):
            model(inputs).sum().backward()
    assert hooks.counts.steps == 2


def test_a_model_that_trains_in_eval_mode_is_still_training():
    model = Pausing()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.eval()
    with hooked() as hooks:
        for inputs, _ in loader(10):
            model(inputs).sum().backward()
            optimizer.step()
    assert hooks.counts.steps >= 3
    assert hooks.spans()["wait"].num_steps >= 3
