"""Watch the steps of a Trainer through its parts. What it trains stays the same, bit by bit."""

import io
import math
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from framework.contracts.batch import Batch, mapped, num_records, tensors
from framework.contracts.data import MicroBatches
from framework.contracts.loader import Loader, LoaderStats
from framework.contracts.parallel import Parallel, Precision
from framework.contracts.training import Objective, Outcome
from framework.errors import words_of
from framework.system.rng import kept_generators
from framework.train.metrics import PassPlace, PassResults, metrics_of
from framework.train.parts import OutputRecorder, Parts, record_losses
from framework.train.step import are_finite, gradients, parameters_of
from framework.train.weights import is_sharded


class LastStepTaken(Exception):
    """The Trainer has taken the last step that is wanted."""


@dataclass
class StepFacts:
    """The results of a step. Steps are counted from 1."""

    step: int
    epoch: int = 0  # counted from 1
    learning_rate: float = 0.0  # of the first parameter group
    means: dict[str, float] = field(default_factory=dict[str, float])  # of its records
    # The norm of each layer's gradients, before they are clipped; {} in a search
    gradients: dict[str, float] = field(default_factory=dict[str, float])
    finite: bool = True  # the loss and all gradients
    updated: bool = True  # False for a skipped step


@dataclass
class WatchedPass:
    """A forward pass of the step that is replayed."""

    batch: Batch  # the records as the model got them
    outputs: list[Any] = field(default_factory=list[Any])  # of the model, call by call
    losses: Tensor | None = None  # of each record, float64 [B]; None if only batches have one


@final
class StepWatch(Loader):
    """Facts of the steps from ``first`` to ``last``, while a Trainer takes them.

    It takes the place of the Trainer's loader. The passes and gradients of the step ``target`` are
    kept. ``progress`` is called after every step with the number of steps.
    """

    parts: Parts  # the Trainer's, unwatched

    def __init__(
        self, first: int, last: int, target: int | None, progress: Callable[[int], object]
    ) -> None:
        self._first = first
        self._last = last
        self.target = target
        self._progress = progress
        self.facts: dict[int, StepFacts] = {}
        self.passes: list[WatchedPass] = []
        self.failure = ""  # why losses of records are not known
        self._step = 0  # steps that were taken
        self._until = last  # the step after it raises LastStepTaken
        self._is_open = False  # whether a step has begun
        # the weight of each pass of the present step, by the id of its batch; 0 for a filler
        self._weights: dict[int, float] = {}
        self._results: dict[str | None, PassResults] = {}  # of the present step, by phase

    def watched(self, parts: Parts, step: int, until: int) -> Parts:
        """Return the parts of a Trainer that has taken ``step`` steps and takes some more."""
        self._step = step
        self._until = until
        self.parts = parts
        self.num_steps = parts.train.num_steps
        self.identity = parts.train.identity
        self.notes = parts.train.notes
        return replace(
            parts,
            train=self,
            objective=_WatchedObjective(parts.objective, self, parts.objective.better),
            precision=_WatchedPrecision(parts.precision, self),
            stop=self.finish,
            recorder=None,  # inside a graph nothing can be seen
        )

    @property
    def present(self) -> StepFacts | None:
        """The facts of the present step; None if they are not kept."""
        number = self._step + 1
        if not self._first <= number <= self._last:
            return None
        return self.facts.setdefault(number, StepFacts(number))

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        """Note each pass. LastStepTaken if it belongs to a step that is not wanted."""
        with closing(self.parts.train.epoch(epoch, start)) as micro_batches:
            for micro in micro_batches:
                if self._step >= self._until:
                    raise LastStepTaken
                if not self._is_open:
                    self._weights, self._results = {}, {}
                    self._is_open = True
                self._weights[id(micro.batch)] = micro.weight
                if self.present is not None:
                    self.present.epoch = epoch + 1
                yield micro

    def stats(self) -> LoaderStats:
        return self.parts.train.stats()

    def passed(
        self, objective: Callable[..., Outcome], model: nn.Module, batch: Batch, phase: str | None
    ) -> Outcome:
        facts = self.present
        words = () if phase is None else (phase,)
        if facts is None or not self._is_open:
            return objective(model, batch, *words)
        recorder: OutputRecorder | None = None
        weight = self._weights[id(batch)]
        is_first = phase in (None, *list(self.parts.phases)[:1])
        if facts.step == self.target and weight > 0 and is_first:
            recorder = OutputRecorder(model)
        outcome = objective(recorder or model, batch, *words)
        place = PassPlace(facts.step, batch.get("index"))
        results = self._results.setdefault(phase, PassResults(self.parts.objective))
        results.add(replace(outcome), num_records(batch), weight, place)
        if recorder is not None:
            outputs = [mapped(output, torch.Tensor.detach) for output in recorder.outputs]
            self.passes.append(WatchedPass(batch, outputs))
        return outcome

    def finish(self) -> bool:
        """Complete the facts of the present step, if any. Never asks the Trainer to stop."""
        if not self._is_open:
            return False
        facts, parts = self.present, self.parts
        if facts is not None:
            for phase, results in self._results.items():
                means = results.results(parts.parallel.total).means
                if phase is not None:
                    means[phase] = means["loss"]
                    means["loss"] += facts.means.get("loss", 0.0)
                facts.means |= means
            facts.finite &= math.isfinite(facts.means["loss"])
        if facts is not None and facts.step == self.target and parts.phases:
            self.failure = "an objective with phases calls parts of the model"
        elif facts is not None and facts.step == self.target:
            keeps = kept_generators(parts.parallel.device)
            with keeps, torch.no_grad(), parts.precision.autocast():
                try:
                    for done in self.passes:
                        done.losses = record_losses(
                            parts.objective, done.outputs, done.batch, training=True
                        )
                except Exception as error:  # noqa: BLE001  # an objective of the user's may need whole batches
                    self.failure = f"{type(error).__name__}: {words_of(error)}"
        self._is_open = False
        self._step += 1
        self._progress(self._step)
        return False


@final
@dataclass
class _WatchedObjective:
    inner: Objective
    watch: StepWatch
    better: Callable[[Mapping[str, float], Mapping[str, float]], bool]

    def __call__(self, model: nn.Module, batch: Batch, phase: str | None = None) -> Outcome:
        return self.watch.passed(self.inner, model, batch, phase)

    def metrics(self, totals: Mapping[str, Tensor]) -> Mapping[str, float]:
        return metrics_of(self.inner, totals)


@final
class _WatchedPrecision:
    def __init__(self, inner: Precision, watch: StepWatch) -> None:
        self._inner = inner
        self._watch = watch
        self.autocast = inner.autocast
        self.backward = inner.backward
        self.state_dict = inner.state_dict
        self.load_state_dict = inner.load_state_dict

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        clip: Callable[[], object] | None,
        skip_bad: bool = False,
        last: bool = True,
    ) -> bool:
        """Note the gradients, before the optimizer uses and may clip them."""
        facts, parts = self._watch.present, self._watch.parts
        if facts is not None:
            facts.learning_rate = float(parts.optimizer.param_groups[0]["lr"])
            facts.finite &= are_finite(gradients(optimizer))
            if self._watch.target is not None:
                model = parts.parallel.unwrap(parts.model)
                own = set(map(id, parameters_of(optimizer)))
                facts.gradients |= gradient_norms(model, self._inner.loss_scale, own)
        changed = self._inner.step(optimizer, clip, skip_bad, last)
        if facts is not None:
            facts.updated &= changed
        return changed


def gradient_norms(
    model: nn.Module, scale: float = 1.0, own: Collection[int] | None = None
) -> dict[str, float]:
    """Return the norm of each module's own gradients over ``scale``. All ranks call this.

    ``own`` are the ids of the parameters that count; None: all.
    """
    norms: dict[str, float] = {}
    for name, module in model.named_modules():
        weights = list(module.parameters(recurse=False))
        if own is not None:
            weights = [weight for weight in weights if id(weight) in own]
        grads = [weight.grad for weight in weights if weight.grad is not None]
        if grads:
            values = [grad.coalesce().values() if grad.is_sparse else grad for grad in grads]
            norm: Any = torch.nn.utils.get_total_norm(values)
            whole = norm.full_tensor() if is_sharded(norm) else norm
            norms[name or type(module).__name__] = float(whole) / scale
    return norms


def gathered_passes(passes: list[WatchedPass], parallel: Parallel) -> list[WatchedPass]:
    """Return the plain tensors of the passes of all ranks, which all call this, in their order."""
    if parallel.world_size == 1:
        return passes
    file = io.BytesIO()
    sent = [
        ({name: v for name, v in tensors(own.batch).items() if not v.is_nested}, own.losses)
        for own in passes
    ]
    torch.save(sent, file)
    whole: list[WatchedPass] = []
    for part in parallel.gather(torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8)):
        theirs = torch.load(io.BytesIO(part.numpy().tobytes()), "cpu", weights_only=True)
        whole += [WatchedPass(batch, losses=losses) for batch, losses in theirs]
    return whole
