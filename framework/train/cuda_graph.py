"""Capture a whole optimizer step as a CUDA graph: launching many small kernels one by one is slow.

A captured step repeats the same kernels on the same memory. A counter on the device tells it which
step it is. It reads that step's learning rates from a table, and leaves its loss and sums in that
step's slot. So the host launches nothing for them, and a report reads many steps at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from framework.contracts.batch import Batch, num_records, tensors
from framework.contracts.training import Outcome
from framework.errors import ResourceError, words_of
from framework.train.metrics import check_outcome
from framework.train.step import Passes, Stepper, drop_gradients

# Steps before the captured one: libraries choose kernels, and the optimizer makes its moments.
WARM_UPS = 3
# Other threads pin memory meanwhile, which capturing forbids unless it watches this thread alone.
CAPTURE_MODE = "thread_local"
NUM_SLOTS = 256  # steps after which the table is filled again
LOSS, COUNT = "", "\n"  # the loss and the count among the sums, which have other names


@final
class CudaRecorder:
    """Captures CUDA graphs. Source: "CUDA Graphs" in PyTorch's notes on CUDA semantics."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def aside(self, work: Callable[[], Any]) -> Any:
        """Do the work on the stream that captures, and return its result."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = work()
        current.wait_stream(self._stream)
        return result

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return a function that does the work on the same tensors, without doing it now.

        RuntimeError if the work cannot be captured.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode=CAPTURE_MODE):
            work()
        return graph.replay


def refused(why: str) -> ResourceError:
    """Return the error for a step that cannot be captured."""
    what = f"the step cannot be captured ({why})"
    return ResourceError(111, "cuda_graph = true", what, "leave it out")


@final
@dataclass
class GraphedPasses:
    """Runs passes and update of a step as one graph. ResourceError R111 if it cannot be captured.

    Batches that do not count fully, or have another shape, run kernel by kernel. A captured step
    marks only ``forward``. ``position`` returns the number of the next step and that of the last.
    """

    passes: Passes
    stepper: Stepper
    recorder: CudaRecorder
    position: Callable[[], tuple[int, int]]

    def __post_init__(self) -> None:
        # inside a graph, events cannot be told apart
        self._unmarked = replace(self.passes, mark=lambda _: None)
        self._inputs: Batch = {}
        self._warm_ups = WARM_UPS
        self._newest: Outcome | None = None  # of a warm-up step
        self._replay: Callable[[], None] | None = None
        self._rate_changes = self.stepper.rate_changes
        self._slots = StepSlots(self.stepper.share_rates(), self.stepper.rates_of)

    def __call__(self, batch: Batch, weight: float, last: bool) -> Outcome:
        if weight != 1.0:
            return self.passes(batch, weight, last)
        if len(tensors(batch)) < len(batch):
            raise refused("the batch has values that are no tensors")
        fits = batch.keys() == self._inputs.keys() and all(
            batch[name].shape == kept.shape and batch[name].dtype == kept.dtype
            for name, kept in self._inputs.items()
        )
        if not fits and self._replay is not None:
            return self.passes(batch, weight, last)
        if not fits:  # a resumed epoch may begin with its last batch, which is short
            self._inputs = {name: torch.empty_like(tensor) for name, tensor in batch.items()}
            self._warm_ups = WARM_UPS
        if self._warm_ups:
            self._warm_ups -= 1
            # the clock's stream waits for the work; a mark inside it would be in another stream
            outcome = self.recorder.aside(lambda: self._unmarked(batch, weight, last))
            # the caller takes totals and arrays out of what it gets
            self._newest = replace(
                outcome,
                loss=outcome.loss.detach(),
                sums=dict(outcome.sums),
                totals=dict(outcome.totals),
                predictions=None,
            )
            self.passes.mark("forward")
            groups = self.stepper.optimizer.param_groups
            weights = (weight for group in groups for weight in group["params"])
            if any(weight.grad is not None and weight.grad.is_sparse for weight in weights):
                raise refused("no fused optimizer takes sparse gradients")
            return outcome
        if self._replay is None:
            assert self._newest is not None
            check_outcome(self._newest, num_records(self._inputs))
            self._slots.make_slots(self._newest)
            self._newest = None
            try:
                self._replay = self.recorder.capture(self._step)
            except RuntimeError as error:
                raise refused(words_of(error)[:200]) from error
        torch._foreach_copy_(  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
            list(self._inputs.values()), [batch[name] for name in self._inputs]
        )
        if self._rate_changes != self.stepper.rate_changes:
            self._rate_changes = self.stepper.rate_changes
            self._slots.has_rates = False  # the schedule has changed
        outcome = self._slots.next_step(*self.position())
        self._replay()
        self.stepper.updated = True
        self.passes.mark("forward")
        return outcome

    def _step(self) -> None:
        self._slots.begin()
        outcome = self._unmarked(self._inputs, 1.0, True)
        check_outcome(outcome, num_records(self._inputs))
        self.stepper.update()
        self._slots.end(outcome)
        drop_gradients(self.stepper.optimizer)  # once, for the steps kernel by kernel


@final
class StepSlots:
    """Memory for the results of ``NUM_SLOTS`` captured steps, a slot each.

    The host calls ``make_slots`` once and ``next_step`` before each captured step. ``begin`` and
    ``end`` are captured. The optimizer reads its ``rates``, float32 tensors without dimensions.
    ``rates_of`` returns those of a step, from its number and that of the last step.
    """

    def __init__(self, rates: list[Tensor], rates_of: Callable[[int, int], list[float]]) -> None:
        self._rates = rates
        self._rates_of = rates_of
        self._table = torch.zeros(NUM_SLOTS, len(rates), device=rates[0].device)
        self._place = torch.zeros(1, dtype=torch.int64, device=rates[0].device)  # the counter
        self._next_place = 0  # its value
        self._first_step = 0  # of the table
        self._last_step = -1  # of the training
        self.has_rates = False  # whether the table has those of the schedule as it is
        self._memory: dict[str, Tensor] = {}  # the slots of each sum, and of the loss
        self._slots: list[Outcome] = []
        self._given: list[tuple[int, Outcome]] = []  # which may still be read
        # Totals and arrays, which may be large, have no slots: they are added up before the next
        # step, in the order of the stream.
        self._totals: dict[str, Tensor] = {}
        self._arrays: dict[str, Tensor] = {}

    def make_slots(self, outcome: Outcome) -> None:
        """Make slots for outcomes like this one. Sums on the host are constants of a graph."""
        arrays = {name: value for name, value in outcome.sums.items() if value.dim() > 1}
        self._arrays = {name: torch.zeros_like(value) for name, value in arrays.items()}
        for name, value in _values(outcome).items():
            if name not in arrays and value.device == self._place.device:
                shape = (NUM_SLOTS, *value.shape)
                self._memory[name] = torch.zeros(shape, dtype=value.dtype, device=value.device)
        self._slots = _outcomes(self._memory, outcome)
        self._totals = {name: torch.zeros_like(value) for name, value in outcome.totals.items()}

    def next_step(self, step: int, last_step: int) -> Outcome:
        """Return the outcome that the next captured step fills. Its number is ``step``, from 0.

        Its totals stay as they are until the step after it.
        """
        place = step - self._first_step
        is_known = self.has_rates and last_step == self._last_step
        if not is_known or not self._next_place <= place < NUM_SLOTS:
            self._keep_given()
            num_steps = min(NUM_SLOTS, max(1, last_step - step))
            rows = [self._rates_of(step + number, last_step) for number in range(num_steps)]
            host = torch.tensor(rows, dtype=torch.float32)
            if self._table.device.type == "cuda":
                host = host.pin_memory()  # so that the copy does not wait for the device
            self._table[:num_steps].copy_(host, non_blocking=True)
            self._first_step = step
            self._last_step = last_step
            self.has_rates = True
            self._place.zero_()
            self._next_place = place = 0
        if place != self._next_place:
            self._place.fill_(place)
        self._next_place = place + 1
        slot = self._slots[place]
        sums = {**slot.sums, **self._arrays}
        outcome = Outcome(slot.loss, sums, slot.count, dict(self._totals))
        self._given.append((place, outcome))
        return outcome

    def begin(self) -> None:
        current = self._table.index_select(0, self._place).view(-1)
        torch._foreach_copy_(self._rates, list(current.unbind()))  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]

    def end(self, outcome: Outcome) -> None:
        """Copy what the step returned into its slot, and count the step."""
        values = _values(outcome)
        for name, memory in self._memory.items():
            memory.index_copy_(0, self._place, values[name].detach().unsqueeze(0))
        for name, total in self._totals.items():
            total.copy_(outcome.totals[name].detach())
        for name, array in self._arrays.items():
            array.copy_(outcome.sums[name].detach())
        self._place.add_(1)

    def _keep_given(self) -> None:
        """Move the outcomes that were given to memory of their own."""
        if not self._given:
            return
        memory = {name: slots.clone() for name, slots in self._memory.items()}
        kept = _outcomes(memory, self._given[0][1])
        for place, outcome in self._given:
            outcome.loss = kept[place].loss
            outcome.count = kept[place].count
            own = kept[place].sums
            outcome.sums.update({name: own[name] for name in own if name in outcome.sums})
        self._given = []


def _values(outcome: Outcome) -> dict[str, Tensor]:
    """Return what has a slot: the loss, the sums, and a count on the device."""
    values = {LOSS: outcome.loss, **outcome.sums}
    if isinstance(outcome.count, Tensor):
        values[COUNT] = outcome.count
    return values


def _outcomes(memory: dict[str, Tensor], like: Outcome) -> list[Outcome]:
    """Return an outcome for each slot. Its tensors are views of the memory."""
    views = {name: slots.unbind() for name, slots in memory.items()}
    losses = views.pop(LOSS)
    counts = views.pop(COUNT, None)
    outcomes: list[Outcome] = []
    for place, loss in enumerate(losses):
        sums = {name: slots[place] for name, slots in views.items()}
        count = like.count if counts is None else counts[place]
        outcomes.append(Outcome(loss, {**like.sums, **sums}, count))
    return outcomes
