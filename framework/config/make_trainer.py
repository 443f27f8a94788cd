"""The shortest way from Python: a Trainer over ready DataLoaders, on one device."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from framework.contracts.data import SourceContext
from framework.contracts.loader import Clock, Loader, LoaderContext
from framework.contracts.records import notes_of
from framework.contracts.training import Objective, Schedule, Watcher
from framework.data.dataloader import loader_source
from framework.errors import say
from framework.loader.plain import PlainLoader
from framework.measure.clock import make_clock
from framework.order.batches import Order
from framework.parallel.none import NoParallel
from framework.precision.fp32 import FP32
from framework.schedule.constant import Constant
from framework.train.metrics import TrainPlan
from framework.train.parts import Parts
from framework.train.trainer import Trainer
from framework.train.watching import Goal, Watching
from framework.transform.none import NoTransform


def make_trainer(
    model: nn.Module,
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    *,
    train: Iterable[Any],
    val: Iterable[Any] | Mapping[str, Iterable[Any]] | None = None,
    epochs: int,
    fields: Sequence[str] | None = None,
    num_batches: int | None = None,
    schedule: Schedule | None = None,
    device: torch.device | None = None,
    seed: int = 0,
    metrics: Mapping[str, Any] | None = None,
    best: Goal | None = None,
    watchers: Mapping[str, Watcher] | None = None,
    say: Callable[[str], None] = say,
) -> Trainer:
    """Return a Trainer over the batches of a DataLoader. It saves nothing.

    Args:
        model: The model, on ``device``.
        objective: The loss and the metrics.
        optimizer: Over the parameters of ``model``.
        train: A DataLoader or another iterable of batches: dicts, dataclasses or tuples.
        val: The same for validation, or several by name, or None.
        epochs: How long to train.
        fields: The names of a tuple's values.
        num_batches: Batches of an epoch, if ``train`` has no length.
        schedule: Of the learning rate; None: it stays as the optimizer has it.
        device: Where ``model`` is; None: the CPU.
        seed: Decides the order of a DataLoader that shuffles.
        metrics: Metrics of TorchMetrics by name, for the validation.
        best: The metric that says which validation is best; None: the objective says it.
        watchers: Objects by name that look at the training, and may end it, such as ``EarlyStop``.
        say: Prints what is not promised for such batches.

    Raises:
        ConfigError: C232, C234 or C235; DataError: D109, D230, D233 or D235, as ``loader_source``.
    """
    device = device or torch.device("cpu")
    clock = make_clock(device, True)
    val_clock = make_clock(device, True)

    def loader(data: Iterable[Any], loader_clock: Clock, training: bool) -> PlainLoader:
        order = partial(Order, batch_size=0)
        context = SourceContext(order, NoTransform(), training=training, seed=seed)
        source = loader_source(data, fields, num_batches if training else None, context=context)
        for note in notes_of(source):
            say(f"note: {note}")
        own = LoaderContext(source, device, lambda batch, _: batch, loader_clock)
        return PlainLoader(pin_memory=True, context=own)

    val_loader: Loader | Mapping[str, Loader] | None = None
    if isinstance(val, Mapping):
        val_loader = {name: loader(data, val_clock, training=False) for name, data in val.items()}
    elif val is not None:
        val_loader = loader(val, val_clock, training=False)
    parallel = NoParallel(device=device)
    of_predictions = None
    if metrics:
        from framework.train.torch_metrics import TorchMetrics  # noqa: PLC0415  # an extra

        of_predictions = TorchMetrics(metrics, parallel, say)
    return Trainer(
        Parts(
            plan=TrainPlan(epochs=epochs),
            model=model,
            objective=objective,
            optimizer=optimizer,
            schedule=schedule or Constant(),
            train=loader(train, clock, training=True),
            val=val_loader,
            parallel=parallel,
            precision=FP32(tf32=True, device=device),
            clock=clock,
            val_clock=val_clock,
            metrics=of_predictions,
            best=best,
            watching=Watching(watchers or {}, parallel),
            say=say,
        )
    )
