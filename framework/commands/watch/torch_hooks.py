"""Follow the steps of a training loop by what it calls, and mark where time goes.

The time before each event belongs to a span. A step ends when the next batch is asked for after an
optimizer has stepped.
"""

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, dataloader
from torch.utils.hooks import RemovableHandle

from framework.contracts.span import Span, merged
from framework.diagnosis.code_lines import WaitingCalls
from framework.measure.clock import STEP_ENDS, make_clock
from framework.measure.stack_sampler import StackSampler

# Spans that are no part of a training step.
OUTSIDE = "outside"  # between the last batch of an epoch and the first one of the next
VALIDATION = "validation"
OTHER = "other"  # after the optimizer has stepped, and what no other span covers
NESTS = (dict, list, tuple)  # a tuple, since a union would be made at each step
SAMPLED_STEP = 3  # the step whose waiting calls are noted
FIRST_STEP = 4  # whose stack is sampled
NUM_SAMPLED = 10  # steps: a sample takes 50 us, so that sampling all would slow the script down
LAST_SAMPLED = max(FIRST_STEP + NUM_SAMPLED, SAMPLED_STEP)  # steps; later ones cost less
# Torch has no hook for it.
Iterator = dataloader._BaseDataLoaderIter  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


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
class TorchHooks:
    """Hooks on the DataLoader's iterator, the outermost module, backward and optimizer steps.

    A hook of modules waits for the first call after a batch, and is off while the model runs, so
    that the modules inside the model stay as fast as they are. Only the thread that made this
    object is watched. After ``num_steps`` measured steps (0: never), ``finish`` is called, once.
    """

    def __init__(self, num_steps: int, finish: Callable[[], object]) -> None:
        self.counts = Counts()
        self.loader: DataLoader[Any] | None = None  # of the newest training batch
        self.root: nn.Module | None = None  # the outermost module that training calls
        self.device = torch.device("cpu")  # of its parameters
        self.calls = WaitingCalls(moves=False)
        self.is_on = False
        self._num_steps = num_steps
        self._finish = finish
        self._thread = get_ident()
        self.sampler = StackSampler("step")  # of the lines of some steps
        self._samples = False
        self._handles: list[RemovableHandle] = []
        # The hook of modules is added and removed in each step. A new handle would take 4 us.
        self._module_hook = self._before_module
        self._module_hooks: Any = {}
        self._module_key = 0
        self._undo: list[Callable[[], object]] = []
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

    def install(self) -> None:
        self.is_on = True
        handle = register_module_forward_pre_hook(self._module_hook)
        self._handles = [handle, register_optimizer_step_post_hook(self._after_optimizer)]
        self._module_hooks = handle.hooks_dict_ref()
        self._module_key = handle.id
        self._disarm()
        self._replace(DataLoader, "__iter__", self._iterating)
        self._replace(Iterator, "__next__", self._next)
        self._replace(torch.autograd, "backward", self._backward)
        # Only the model itself is hooked, and only when it is called.
        warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global")
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._turn_off)

    def remove(self) -> None:
        self._turn_off()
        self.calls.stop()
        self._stop_sampling()
        while self._handles:
            self._handles.pop().remove()
        while self._undo:
            self._undo.pop()()

    def end(self) -> None:
        """Record that the script has ended, or is no longer watched."""
        if self._phase != Phase.ASKED:
            self._end_part(time.perf_counter())

    def spans(self) -> dict[str, Span]:
        """Return the spans since the last call. ``other`` ends a step."""
        spans = self._clock.spans()
        ends = spans.pop(STEP_ENDS, Span())
        if OTHER in spans:  # between the batches of an accumulated step
            ends = Span(ends.total_s + spans.pop(OTHER).total_s, ends.num_steps, ends.recent)
        return {**merged({}, spans), OTHER: ends}

    def _turn_off(self) -> None:
        self.is_on = False

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        before = getattr(owner, name)
        setattr(owner, name, make(before))
        self._undo.append(lambda: setattr(owner, name, before))

    def _disarm(self) -> None:
        self._module_hooks.pop(self._module_key, None)

    def _iterating(self, iterate: Any) -> Any:
        def iterating(loader: DataLoader[Any]) -> Any:
            if self.is_on and get_ident() == self._thread:
                self._disarm()
                self._note_request(loader)
                if self.is_on and self._phase == Phase.ASKED:  # which may start workers
                    self.counts.epochs += 1
                    self._is_epoch_start = True
            return iterate(loader)

        return iterating

    def _next(self, get: Any) -> Any:
        hooks = self._module_hooks
        key = self._module_key

        def next_batch(iterator: Any) -> Any:
            if not self.is_on or get_ident() != self._thread:
                return get(iterator)
            reads_ahead = hooks.pop(key, None) is not None  # the last batch was not used yet
            self._note_request(None)
            if not self.is_on:
                return get(iterator)
            try:
                batch = get(iterator)
            except StopIteration:
                if self._phase != Phase.VALIDATION:
                    self._clock.mark("wait")
                    self._phase = Phase.OUTSIDE
                self._stop_sampling()
                if reads_ahead:
                    hooks[key] = self._module_hook
                raise
            hooks[key] = self._module_hook
            if self._phase == Phase.VALIDATION:
                self._clock.mark(VALIDATION)
                return batch
            self._clock.mark("wait")
            self._phase = Phase.BATCH
            self._got_s = now = time.perf_counter()
            steps = self.counts.steps
            if steps % 16 == 0:  # it takes 80 us beside busy threads
                self._got_cpu_s = time.process_time()
            if self._is_epoch_start:
                self._is_epoch_start = False
                self.counts.start_s.append(now - self._asked_s)
            first = batch
            while isinstance(first, NESTS) and first:
                first = next(iter(first.values() if isinstance(first, dict) else first))
            # The length of the first tensor.
            self._open_records += first.shape[0] if isinstance(first, Tensor) and first.dim() else 1
            if steps <= LAST_SAMPLED:
                if not FIRST_STEP <= steps < FIRST_STEP + NUM_SAMPLED:
                    self._stop_sampling()
                elif not self._samples:
                    self._samples = True
                    self.sampler.start()
                if steps == SAMPLED_STEP:
                    self.calls.start()
            return batch

        return next_batch

    def _note_request(self, loader: DataLoader[Any] | None) -> None:
        """Record that the script asks for an iterator of ``loader``, or (None) for a batch.

        This may end the last wanted step. The hooks are then removed, and ``finish`` is called.
        """
        is_early = self.counts.steps <= LAST_SAMPLED
        if is_early:
            self.calls.stop()
        if self._phase != Phase.ASKED:  # for the iterator
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
        if is_early and self._phase == Phase.VALIDATION:
            self._stop_sampling()
        if 0 < self._num_steps <= self.counts.steps:
            self.remove()
            self._finish()

    def _stop_sampling(self) -> None:
        """Stop until the next training batch, because what follows is no part of a step."""
        if self._samples:
            self._samples = False
            self.sampler.stop()

    def _before_module(self, module: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling() or not self.is_on or get_ident() != self._thread:
            return
        if module is not self.root:
            parameter = next(module.parameters(), None)
            if parameter is None:
                return
            if self._phase != Phase.VALIDATION:
                if parameter.device.type != self.device.type and self._is_first:
                    self._clock = make_clock(parameter.device)  # that of a GPU
                self.device, self.root = parameter.device, module
        if self._phase != Phase.VALIDATION:
            self._clock.mark("copy")
            self._phase = Phase.FORWARD
        self._disarm()

    def _backward(self, backward: Any) -> Any:
        def run_backward(*args: Any, **kwargs: Any) -> None:
            if not self.is_on or get_ident() != self._thread:
                backward(*args, **kwargs)
                return
            self._disarm()
            self._depth += 1
            if self._depth == 1:
                if self._phase == Phase.VALIDATION and self.root is not None:
                    self._trains_in_eval = not self.root.training  # as with frozen batch norm
                self._clock.mark("forward")
            try:
                backward(*args, **kwargs)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._clock.mark("backward")
                    self._phase = Phase.BACKWARD

        return run_backward

    def _after_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.is_on and get_ident() == self._thread:
            if not self._has_stepped:  # batches were counted as steps
                self._has_stepped = self._is_first = True
            self._clock.mark("optimizer")
            self._phase = Phase.STEPPED

    def _end_part(self, now: float) -> None:
        is_computing = self._phase in (Phase.BACKWARD, Phase.STEPPED)
        counts = self.counts
        if not counts.before_s:  # forget what came before the first batch
            counts.before_s = time.perf_counter() - self._began_s
            self._clock.mark(OUTSIDE)
            self._clock.spans()
            self._phase = Phase.OUTSIDE
        elif self._phase == Phase.OUTSIDE:
            self._clock.mark(OUTSIDE)
        elif self._phase == Phase.VALIDATION:
            self._clock.mark(VALIDATION)
        elif self._phase == Phase.STEPPED or not self._has_stepped:
            self._clock.mark(STEP_ENDS)
            if is_computing:
                counts.steps += 1
                counts.records += self._open_records
                self._open_records = 0
                if self._is_first:  # what was measured so far is forgotten
                    self._is_first = False
                    spans = self.spans()
                    others = (OUTSIDE, VALIDATION)
                    counts.first_s = sum(s.total_s for n, s in spans.items() if n not in others)
                    counts.steps = counts.records = 0
                    counts.compute_s = counts.compute_cpu_s = 0.0
        else:
            self._clock.mark(OTHER)
        if is_computing and self._got_cpu_s and counts.steps:
            counts.compute_s += now - self._got_s
            counts.compute_cpu_s += time.process_time() - self._got_cpu_s
            self._got_cpu_s = 0.0
