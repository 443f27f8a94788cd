"""Follow the steps of somebody's training loop by what it calls, and mark where time goes.

Training asks for a batch, calls a module, runs backward and steps an optimizer. The time before
each of these events belongs to a span. A step ends when the next batch is asked for after an
optimizer has stepped.
"""

import time
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from framework.contracts.span import Span, merged
from framework.measure.clock import STEP_ENDS, make_clock

# Spans that are no part of a training step.
OUTSIDE = "outside"  # between the last batch of an epoch and the first one of the next
VALIDATION = "validation"
OTHER = "other"  # after the optimizer has stepped, and what no other span covers
# One step in so many asks for the CPU time of this process, which takes 80 us beside busy threads.
CPU_EVERY = 16
NESTS = (dict, list, tuple)  # a tuple, since a union would be made at each step
SAMPLED_STEP = 3  # the step whose input and waiting calls are noted


class Phase:
    """What the script did last. Plain numbers: an Enum takes a microsecond more per step."""

    OUTSIDE = 0
    ASKED = 1  # for a batch
    BATCH = 2
    FORWARD = 3
    BACKWARD = 4
    STEPPED = 5
    VALIDATION = 6


@dataclass
class Counts:
    """What is counted beside the spans."""

    steps: int = 0  # that were measured
    records: int = 0  # of these steps
    epochs: int = 0  # iterators of training DataLoaders
    start_s: list[float] = field(default_factory=list[float])  # to each epoch's first batch
    before_s: float = 0.0  # from the start to the first batch that was asked for
    first_s: float = 0.0  # of the first step, which makes what is made once and is not measured
    compute_s: float = 0.0  # of some measured steps, without waiting
    compute_cpu_s: float = 0.0  # CPU seconds of this process in ``compute_s``


@final
class StepRecorder:
    """The state of a training loop. The thread that trains calls all methods.

    Attributes:
        loader: The DataLoader of the newest training batch.
        root: The outermost module that training calls.
        sample: The input of ``root`` in one step, on the host, if it is a single tensor.
        device: Where the parameters of ``root`` are.
        thread: The thread that trains.
    """

    def __init__(self) -> None:
        self.counts = Counts()
        self.loader: DataLoader[Any] | None = None
        self.root: nn.Module | None = None
        self.sample: Tensor | None = None
        self.device = torch.device("cpu")
        self.thread = get_ident()
        self._clock = make_clock(self.device)
        self._phase = Phase.OUTSIDE
        self._depth = 0  # of calls of backward
        self._has_stepped = False  # whether any optimizer ever stepped
        self._trains_in_eval = False
        self._is_epoch_start = False
        self._is_first = True
        self._open_records = 0  # of the batches since the last step ended
        self._asked_s = self._got_s = self._began_s = time.perf_counter()
        self._got_cpu_s = 0.0

    @property
    def is_training(self) -> bool:
        """Whether the script did not ask for a validation batch last."""
        return self._phase != Phase.VALIDATION

    def iterates(self) -> None:
        """Record that the script makes an iterator, which may start workers.

        ``asks`` is called before this method.
        """
        if self._phase == Phase.ASKED:
            self.counts.epochs += 1
            self._is_epoch_start = True

    def asks(self, loader: DataLoader[Any] | None) -> None:
        """Record that the script asks for an iterator of ``loader``, or (None) for a batch."""
        if self._phase == Phase.ASKED:  # for the iterator
            return
        now = time.perf_counter()
        self._end_part(now)
        root = self.root
        in_eval = root is not None and not root.training and not self._trains_in_eval
        self._phase = Phase.VALIDATION
        if not in_eval and torch.is_grad_enabled():
            self._phase = Phase.ASKED
            self._asked_s = now
            if loader is not None:  # ``or`` would ask for its length, which it may not know
                self.loader = loader

    def gets(self, batch: Any) -> None:
        """Record that ``batch`` has come."""
        if self._phase == Phase.VALIDATION:
            self._clock.mark(VALIDATION)
            return
        self._clock.mark("wait")
        self._phase = Phase.BATCH
        self._got_s = now = time.perf_counter()
        wait_s = now - self._asked_s
        if self.counts.steps % CPU_EVERY == 0:
            self._got_cpu_s = time.process_time()
        if self._is_epoch_start:
            self._is_epoch_start = False
            self.counts.start_s.append(wait_s)
        self._open_records += num_records(batch)

    def has_no_more(self) -> None:
        """Record that the DataLoader has no more batches."""
        if self._phase != Phase.VALIDATION:
            self._clock.mark("wait")
            self._phase = Phase.OUTSIDE

    def calls(self, module: nn.Module, inputs: tuple[Any, ...]) -> bool:
        """Record the first call since a batch of a module that has parameters.

        Return whether ``module`` has parameters. If it has none, nothing is recorded.
        """
        if module is not self.root:
            parameter = next(module.parameters(), None)
            if parameter is None:
                return False
            if self._phase != Phase.VALIDATION:
                if parameter.device.type != self.device.type and self._is_first:
                    self._clock = make_clock(parameter.device)  # that of a GPU
                self.device, self.root = parameter.device, module
        if self._phase != Phase.VALIDATION:
            self._clock.mark("copy")
            self._phase = Phase.FORWARD
            if self.counts.steps == SAMPLED_STEP and len(inputs) == 1:
                only = inputs[0]
                if isinstance(only, Tensor) and only.dim():
                    self.sample = only.detach().cpu()
        return True

    def begins_backward(self) -> None:
        self._depth += 1
        if self._depth == 1:
            if self._phase == Phase.VALIDATION and self.root is not None:
                self._trains_in_eval = not self.root.training  # as with frozen batch norm
            self._clock.mark("forward")

    def ends_backward(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._clock.mark("backward")
            self._phase = Phase.BACKWARD

    def ends_optimizer(self) -> None:
        """Record that an optimizer has stepped. Its span begins where backward has ended."""
        if not self._has_stepped:  # batches were counted as steps
            self._has_stepped = self._is_first = True
        self._clock.mark("optimizer")
        self._phase = Phase.STEPPED

    def spans(self) -> dict[str, Span]:
        """Return the spans since the last call. ``other`` ends a step."""
        spans = self._clock.spans()
        ends = spans.pop(STEP_ENDS, Span())
        if OTHER in spans:  # between the batches of an accumulated step
            ends = Span(ends.total_s + spans.pop(OTHER).total_s, ends.num_steps, ends.recent)
        return {**merged({}, spans), OTHER: ends}

    def end(self) -> None:
        """Record that the script has ended, or is no longer watched."""
        if self._phase != Phase.ASKED:
            self._end_part(time.perf_counter())

    def _end_part(self, now: float) -> None:
        """Name the time since the last mark by what the script did last."""
        if not self.counts.before_s:  # forget what came before the first batch
            self.counts.before_s = time.perf_counter() - self._began_s
            self._clock.mark(OUTSIDE)
            self._clock.spans()
            self._phase = Phase.OUTSIDE
        elif self._phase == Phase.OUTSIDE:
            self._clock.mark(OUTSIDE)
        elif self._phase == Phase.VALIDATION:
            self._clock.mark(VALIDATION)
        elif self._phase == Phase.STEPPED or not self._has_stepped:
            self._clock.mark(STEP_ENDS)
            self._end_step()
        else:
            self._clock.mark(OTHER)
        is_computing = self._phase in (Phase.BACKWARD, Phase.STEPPED)
        if is_computing and self._got_cpu_s and self.counts.steps:
            self.counts.compute_s += now - self._got_s
            self.counts.compute_cpu_s += time.process_time() - self._got_cpu_s
            self._got_cpu_s = 0.0

    def _end_step(self) -> None:
        if self._phase not in (Phase.STEPPED, Phase.BACKWARD):
            return
        self.counts.steps += 1
        self.counts.records += self._open_records
        self._open_records = 0
        if self._is_first:
            self._is_first = False
            spans = self.spans()  # what was measured so far is forgotten
            of_step = (span for name, span in spans.items() if name not in (OUTSIDE, VALIDATION))
            self.counts.first_s = sum(span.total_s for span in of_step)
            self.counts.steps = self.counts.records = 0
            self.counts.compute_s = self.counts.compute_cpu_s = 0.0


def num_records(batch: Any) -> int:
    """Return the length of the first tensor of a batch, and 1 if it has none."""
    while isinstance(batch, NESTS) and batch:
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch))
    return batch.shape[0] if isinstance(batch, Tensor) and batch.dim() else 1
