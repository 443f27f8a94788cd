"""Hooks on the DataLoader's iterator, the outermost module, backward and optimizer steps.

A hook of modules waits for the first call after a batch, and is off while the model runs, so that
the modules inside the model stay as fast as they are.
"""

import os
import warnings
from collections.abc import Callable
from threading import get_ident
from typing import Any, final
from weakref import WeakMethod

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, dataloader
from torch.utils.hooks import RemovableHandle

from framework.commands.watch.step_recorder import SAMPLED_STEP, StepRecorder
from framework.diagnosis.code_lines import WaitingCalls, largest_lines
from framework.diagnosis.facts import PythonLine
from framework.measure.stack_sampler import StackSampler

FIRST_STEP = 4  # whose stack is sampled
NUM_SAMPLED = 10  # steps: a sample takes 50 us, so that sampling all would slow the script down
LAST_SAMPLED = max(FIRST_STEP + NUM_SAMPLED, SAMPLED_STEP)  # steps; later ones cost less
MOST_LINES = 3
LEAST_LINE = 0.1  # a line with a smaller share is left out
# Torch has no hook for it.
Iterator = dataloader._BaseDataLoaderIter  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


@final
class TorchHooks:
    """The hooks, from ``install`` to ``remove``.

    Args:
        recorder: What the hooks call.
        num_steps: Call ``finish`` after so many measured steps; 0: never.
        finish: Called at most once.
    """

    def __init__(
        self, recorder: StepRecorder, num_steps: int, finish: Callable[[], object]
    ) -> None:
        self.recorder = recorder
        self.calls = WaitingCalls(moves=False)
        self._sampler = StackSampler()
        self._sampler.label = "step"
        self._samples = False
        self._num_steps = num_steps
        self._finish = finish
        self._handles: list[RemovableHandle] = []
        # The hook of modules comes and goes at each step. A new handle would take 4 us each time.
        self._module_hook = self._before_module
        self._module_hooks: dict[int, Any] = {}
        self._module_key = 0
        self._undo: list[Callable[[], object]] = []
        self.is_on = False

    def install(self) -> None:
        self.is_on = True
        self._handles = [register_optimizer_step_post_hook(self._after_optimizer)]
        handle = register_module_forward_pre_hook(self._module_hook)
        hooks: Any = handle.hooks_dict_ref()
        self._module_hooks = hooks
        self._module_key = handle.id
        self._disarm()
        self._replace(DataLoader, "__iter__", self._iterating)
        self._replace(Iterator, "__next__", self._next)
        self._replace(torch.autograd, "backward", self._backward)
        # Only the model itself is hooked, and only when it is called.
        warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global")
        known = WeakMethod(self._forget)  # a function that is called at forks is kept forever

        def forget() -> None:
            if (method := known()) is not None:
                method()

        os.register_at_fork(after_in_child=forget)

    def remove(self) -> None:
        """Remove all hooks. Does nothing the second time."""
        self._forget()
        self.calls.stop()
        self._stop_sampling()
        self._disarm()
        while self._handles:
            self._handles.pop().remove()
        while self._undo:
            self._undo.pop()()

    def lines(self) -> list[PythonLine]:
        """Return the lines of Python that take most of the sampled steps."""
        return largest_lines(self._sampler, "step", MOST_LINES, LEAST_LINE)

    def _forget(self) -> None:
        self.is_on = False

    def _stop_sampling(self) -> None:
        """Stop until the next training batch, because what follows is no part of a step."""
        if self._samples:
            self._samples = False
            self._sampler.stop()

    def _is_watched(self) -> bool:
        return self.is_on and get_ident() == self.recorder.thread

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        before = getattr(owner, name)
        setattr(owner, name, make(before))
        self._undo.append(lambda: setattr(owner, name, before))

    def _iterating(self, iterate: Any) -> Any:
        def iterating(loader: DataLoader[Any]) -> Any:
            if self._is_watched():
                self._disarm()
                self._asks(loader)
                if self.is_on:
                    self.recorder.iterates()
            return iterate(loader)

        return iterating

    def _next(self, get: Any) -> Any:
        recorder = self.recorder
        hooks = self._module_hooks
        key = self._module_key

        def following(iterator: Any) -> Any:
            if not self.is_on or get_ident() != recorder.thread:
                return get(iterator)
            reads_ahead = hooks.pop(key, None) is not None  # the last batch was not used yet
            if self._num_steps or recorder.counts.steps <= LAST_SAMPLED:
                self._asks(None)
                if not self.is_on:
                    return get(iterator)
            else:
                recorder.asks(None)
            try:
                batch = get(iterator)
            except StopIteration:
                recorder.has_no_more()
                self._stop_sampling()
                if reads_ahead:
                    hooks[key] = self._module_hook
                raise
            recorder.gets(batch)
            hooks[key] = self._module_hook
            if recorder.counts.steps <= LAST_SAMPLED:
                self._after_batch()
            return batch

        return following

    def _asks(self, loader: DataLoader[Any] | None) -> None:
        """Record that the script asks for an iterator or a batch.

        This may end the last wanted step. The hooks are then removed, and ``finish`` is called.
        """
        recorder = self.recorder
        is_early = recorder.counts.steps <= LAST_SAMPLED
        if is_early:
            self.calls.stop()
        recorder.asks(loader)
        if is_early and not recorder.is_training:
            self._stop_sampling()
        steps = recorder.counts.steps
        if 0 < self._num_steps <= steps:
            self.remove()
            self._finish()

    def _after_batch(self) -> None:
        steps = self.recorder.counts.steps
        if not self.recorder.is_training:
            return
        if not FIRST_STEP <= steps < FIRST_STEP + NUM_SAMPLED:
            self._stop_sampling()
        elif not self._samples:
            self._samples = True
            self._sampler.start()
        if steps == SAMPLED_STEP:
            self.calls.start()

    def _backward(self, backward: Any) -> Any:
        recorder = self.recorder

        def watched(*args: Any, **kwargs: Any) -> None:
            if not self.is_on or get_ident() != recorder.thread:
                backward(*args, **kwargs)
                return
            self._disarm()
            recorder.begins_backward()
            try:
                backward(*args, **kwargs)
            finally:
                recorder.ends_backward()

        return watched

    def _disarm(self) -> None:
        self._module_hooks.pop(self._module_key, None)

    def _before_module(self, module: torch.nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling() or not self._is_watched():
            return
        if self.recorder.calls(module, inputs):
            self._disarm()

    def _after_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._is_watched():
            self.recorder.ends_optimizer()
