"""Look at the steps of a Trainer from its parts, without changing a bit of what it learns."""

import io
import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, final

import torch
from torch import Tensor, nn

from framework.contracts.batch import Batch, mapped, num_records, tensors
from framework.contracts.data import MicroBatch, MicroBatches
from framework.contracts.loader import Loader, LoaderStats
from framework.contracts.parallel import Parallel, Precision, ScalesLoss
from framework.contracts.training import Objective, Outcome
from framework.errors import words_of
from framework.precision.clip import gradients
from framework.system.rng import kept_generators
from framework.train.ema import is_sharded
from framework.train.metrics import PassPlace, Tally, metrics_of
from framework.train.nonfinite import are_finite
from framework.train.parts import Parts
from framework.train.record_losses import OutputRecorder, record_losses


class LastStepTaken(Exception):
    """The Trainer has taken the last step that is wanted."""


@dataclass
class StepFacts:
    """What a step came to.

    Attributes:
        step: Its number, counted from 1.
        epoch: Its epoch, counted from 1.
        learning_rate: Of the first parameter group.
        means: The loss and the metrics of its records.
        gradients: The norm of the gradients of each layer, before they are clipped; {} in a search.
        finite: Whether the loss and all gradients are finite.
        updated: Whether the weights changed; False for a skipped step.
        weights: The SHA-256 of the weights and buffers after the step; "" in a search.
    """

    step: int
    epoch: int = 0
    learning_rate: float = 0.0
    means: dict[str, float] = field(default_factory=dict[str, float])
    gradients: dict[str, float] = field(default_factory=dict[str, float])
    finite: bool = True
    updated: bool = True
    weights: str = ""


@dataclass
class WatchedPass:
    """A forward pass of the step that is looked at closely.

    Attributes:
        batch: The records as the model got them.
        outputs: What the model returned, call by call.
        losses: The loss of each record, float64 [B]; None if the objective needs whole batches.
    """

    batch: Batch
    outputs: list[Any] = field(default_factory=list[Any])
    losses: Tensor | None = None


@final
class StepWatch:
    """Facts of the steps from ``first`` to ``last``, while a Trainer takes them.

    Args:
        first: The first step whose facts are kept.
        last: The last one. The step after it raises LastStepTaken.
        target: The step whose passes are kept; None: no step.
        told: Called after every step with its number.
    """

    def __init__(
        self, first: int, last: int, target: int | None, told: Callable[[int], None]
    ) -> None:
        self.first = first
        self.last = last
        self.target = target
        self.facts: dict[int, StepFacts] = {}
        self.passes: list[WatchedPass] = []
        self.failure = ""  # why losses of records are not known
        self.until = last  # the step at which the present part of the run ends
        self.parts: Parts | None = None  # the Trainer's, unwatched
        self._told = told
        self._step = 0  # steps that were taken
        self._is_open = False  # whether a step has begun
        self._micro: MicroBatch | None = None
        self._tally = Tally()

    def watched(self, parts: Parts, step: int, until: int) -> Parts:
        """Return the parts of a Trainer that has taken ``step`` steps and shall stop at a step."""
        self._step = step
        self.until = min(until, self.last)
        self.parts = parts
        return replace(
            parts,
            train=_WatchedLoader(parts.train, self),
            objective=_WatchedObjective(parts.objective, self),
            precision=_WatchedPrecision(parts.precision, self),
            stop=self._after_step,
            recorder=None,  # inside a graph nothing can be seen
        )

    @property
    def present(self) -> StepFacts | None:
        """The facts of the present step; None if they are not wanted."""
        number = self._step + 1
        if not self.first <= number <= self.last:
            return None
        return self.facts.setdefault(number, StepFacts(number))

    @property
    def is_target(self) -> bool:
        return self._step + 1 == self.target

    def begin(self, micro: MicroBatch, epoch: int) -> None:
        """Note the batch of a pass. LastStepTaken if it belongs to a step that is not wanted."""
        if self._step >= self.until:
            raise LastStepTaken
        self._micro = micro
        facts = self.present
        if not self._is_open:
            assert self.parts is not None
            self._tally = Tally(self.parts.objective)
            self._is_open = True
        if facts is not None:
            facts.epoch = epoch + 1

    def passed(self, objective: Objective, model: nn.Module, batch: Batch) -> Outcome:
        """Pass a batch to the model as the Trainer does, and keep what comes of it."""
        facts, micro = self.present, self._micro
        if facts is None or micro is None:
            return objective(model, batch)
        recorder: OutputRecorder | None = None
        if self.is_target and micro.weight > 0:
            recorder = OutputRecorder(model)
        outcome = objective(recorder or model, batch)
        place = PassPlace(facts.step, batch.get("index"))
        self._tally.add(replace(outcome), num_records(batch), micro.weight, place)
        if recorder is not None:
            outputs = [mapped(output, torch.Tensor.detach) for output in recorder.outputs]
            self.passes.append(WatchedPass(batch, outputs))
        return outcome

    def stepped(self, precision: Precision, optimizer: torch.optim.Optimizer) -> None:
        """Note the gradients, before the optimizer uses and may clip them."""
        facts = self.present
        if facts is None:
            return
        assert self.parts is not None
        scale = 1.0
        if isinstance(precision, ScalesLoss):
            scale = precision.loss_scale
        facts.learning_rate = float(optimizer.param_groups[0]["lr"])
        facts.finite = are_finite(gradients(optimizer))
        if self.target is not None:
            model = self.parts.parallel.unwrap(self.parts.model)
            facts.gradients = gradient_norms(model, scale)

    def updated(self, has_changed: bool) -> None:
        if self.present is not None:
            self.present.updated = has_changed

    def _after_step(self) -> bool:
        """Finish a step. The Trainer calls it after every one to know whether to stop."""
        self.finish()
        self._told(self._step)
        return False

    def finish(self) -> None:
        """Complete the facts of the present step. Nothing happens if none has begun."""
        if not self._is_open:
            return
        facts, parts = self.present, self.parts
        assert parts is not None
        if facts is not None:
            facts.means = self._tally.results(parts.parallel.total).means
            facts.finite &= math.isfinite(facts.means["loss"])
            if self.target is not None:
                model = parts.parallel.unwrap(parts.model)
                facts.weights = weights_digest(parts.parallel.gather_state(model.state_dict()))
        if self.is_target:
            self._find_losses(parts)
        self._is_open = False
        self._micro = None
        self._step += 1

    def _find_losses(self, parts: Parts) -> None:
        with kept_generators(parts.parallel.device), torch.no_grad(), parts.precision.autocast():
            for done in self.passes:
                try:
                    done.losses = record_losses(parts.objective, done.outputs, done.batch, True)
                except Exception as error:  # noqa: BLE001  # an objective of the user's may need whole batches
                    self.failure = f"{type(error).__name__}: {words_of(error)}"
                    return


@final
class _WatchedLoader:
    """A Loader whose batches are noted."""

    def __init__(self, inner: Loader, watch: StepWatch) -> None:
        self._inner = inner
        self._watch = watch
        self.num_steps = inner.num_steps
        self.identity = inner.identity
        self.notes = inner.notes

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        with closing(self._inner.epoch(epoch, start)) as micro_batches:
            for micro in micro_batches:
                self._watch.begin(micro, epoch)
                yield micro

    def stats(self) -> LoaderStats:
        return self._inner.stats()

    def close(self) -> None:
        self._inner.close()


@final
class _WatchedObjective:
    """An Objective whose outcomes are noted."""

    def __init__(self, inner: Objective, watch: StepWatch) -> None:
        self._inner = inner
        self._watch = watch

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        return self._watch.passed(self._inner, model, batch)

    def better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        return self._inner.better(new, old)

    def metrics(self, totals: Mapping[str, Tensor]) -> Mapping[str, float]:
        return metrics_of(self._inner, totals)


@final
class _WatchedPrecision:
    """A Precision whose steps are noted."""

    def __init__(self, inner: Precision, watch: StepWatch) -> None:
        self._inner = inner
        self._watch = watch
        self.autocast = inner.autocast
        self.backward = inner.backward
        self.state_dict = inner.state_dict
        self.load_state_dict = inner.load_state_dict

    def step(
        self, optimizer: torch.optim.Optimizer, clip_norm: float | None, skip_bad: bool = False
    ) -> bool:
        self._watch.stepped(self._inner, optimizer)
        changed = self._inner.step(optimizer, clip_norm, skip_bad)
        self._watch.updated(changed)
        return changed


def gradient_norms(model: nn.Module, scale: float = 1.0) -> dict[str, float]:
    """Return the norm of the gradients of each layer that has any, by its name.

    A layer is a module with parameters of its own. ``scale`` is the factor on the gradients. If the
    gradients are sharded, all ranks call this together.
    """
    norms: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        parameters = module.parameters(recurse=False)
        own = [_values(part.grad) for part in parameters if part.grad is not None]
        if own:
            norm: Any = torch.nn.utils.get_total_norm(own)
            whole = norm.full_tensor() if is_sharded(norm) else norm
            norms[name or type(module).__name__] = whole.double()
    if not norms:
        return {}
    values = (torch.stack(list(norms.values())) / scale).tolist()
    return dict(zip(norms, values, strict=True))


def _values(gradient: Tensor) -> Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def weights_digest(state: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the names and bits of a model's weights and buffers."""
    digest = sha256()
    for name in sorted(state):
        if isinstance(state[name], Tensor):
            digest.update(name.encode())
            values = state[name].detach().cpu().contiguous().reshape(-1)
            digest.update(values.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def gathered_passes(passes: list[WatchedPass], parallel: Parallel) -> list[WatchedPass]:
    """Return the passes of all ranks in the order of the ranks, on the host.

    All ranks call this together. Outputs, and what is no plain tensor, stay behind. The passes of a
    single rank are returned as they are.
    """
    if parallel.world_size == 1:
        return passes
    own = [{"batch": _plain_tensors(done.batch), "losses": done.losses} for done in passes]
    file = io.BytesIO()
    torch.save(own, file)
    data = torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8)
    whole: list[WatchedPass] = []
    for part in parallel.gather(data):
        theirs = torch.load(io.BytesIO(part.numpy().tobytes()), "cpu", weights_only=True)
        whole += [WatchedPass(done["batch"], losses=done["losses"]) for done in theirs]
    return whole


def _plain_tensors(batch: Batch) -> dict[str, Tensor]:
    return {name: values for name, values in tensors(batch).items() if not values.is_nested}
