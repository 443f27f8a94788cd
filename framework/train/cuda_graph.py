"""A whole optimizer step as one CUDA graph: where a step is many small kernels, launching them takes longer than they do."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, final

import torch
from torch import Tensor

from framework.contracts.batch import Batch, tensors
from framework.contracts.training import Outcome
from framework.errors import ResourceError, words_of
from framework.train.metrics import check_outcome
from framework.train.step import Passes, Stepper

WARM_UPS = 3  # steps before the one that is captured: libraries choose their kernels, the optimizer makes its moments


def _unmarked(_: str) -> None:
    """Events cannot be told apart inside a graph."""


class Recorder(Protocol):
    """Captures work, to be done again by one call."""

    def aside(self, work: Callable[[], Any]) -> Any:
        """Do it now, where capturing will be: what it returns."""
        ...

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """What does ``work`` at every call, with the tensors that it has now; it is not done yet. RuntimeError where it cannot be captured."""
        ...


@final
class CudaRecorder:
    """CUDA graphs. Source of the order of things: "CUDA Graphs" in PyTorch's notes on CUDA semantics."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)

    def aside(self, work: Callable[[], Any]) -> Any:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            found = work()
        current.wait_stream(self._stream)
        return found

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        graph, pool, current = (
            torch.cuda.CUDAGraph(),
            torch.cuda.graph_pool_handle(),
            torch.cuda.current_stream(self._device),
        )
        generator = torch.cuda.get_rng_state(self._device)
        try:
            # other threads pin memory meanwhile, which capturing forbids unless it looks at this thread only
            with torch.cuda.graph(
                graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                work()
        except RuntimeError:
            torch.cuda.set_stream(current)
            self._end_capture(pool, generator)
            raise
        return graph.replay

    def _end_capture(self, pool: Any, generator: Tensor) -> None:
        """What torch leaves undone where a capture fails: it would go on capturing allocations, hold back every tensor that another stream has
        used, and, in some versions, take its generator for the graph's until the next capture ends. ResourceError R111 where the device cannot
        be used even so.
        """
        with suppress(RuntimeError):  # it was done
            torch._C._cuda_endAllocateToPool(self._device.index or 0, pool)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
        try:
            something = torch.zeros(1, device=self._device)
            with torch.cuda.graph(
                torch.cuda.CUDAGraph(), stream=self._stream, capture_error_mode="thread_local"
            ):
                something.add_(1)
            torch.rand(1, device=self._device).cpu()
            torch.cuda.set_rng_state(
                generator, self._device
            )  # the step is done again, kernel by kernel, and draws the same
        except RuntimeError as error:
            what = f"the step cannot be captured, and the device is of no use after it ({words_of(error)[:200]})"
            raise ResourceError(111, "cuda_graph = true", what, "leave it out") from error


@final
class GraphedPasses:
    """``passes`` and ``stepper``'s update in one graph, for batches that count fully and are of one shape; others, and where capturing
    fails, which ``say`` tells once, run kernel by kernel. ``set_rates``: asked before each such step.

    Its marks: the whole step is ``forward``.
    """

    def __init__(
        self,
        passes: Passes,
        stepper: Stepper,
        recorder: Recorder,
        set_rates: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self.passes, self.stepper, self.recorder = passes, stepper, recorder
        self.set_rates, self.say = set_rates, say
        self._unmarked = Passes(
            passes.model, passes.objective, passes.parallel, passes.precision, _unmarked
        )
        self._inputs: Batch = {}
        self._warm_ups = WARM_UPS
        self._found: Outcome | None = None
        self._replay: Callable[[], None] | None = None
        self._failed = False
        stepper.share_rates()

    def __call__(self, batch: Batch, weight: float, last: bool) -> Outcome:
        if weight != 1.0 or self._failed or not self._fits(batch):
            return self.passes(batch, weight, last)
        if self._warm_ups:
            self._warm_ups -= 1
            return self.recorder.aside(lambda: self.passes(batch, weight, last))
        if self._replay is None and not self._captured():
            return self.passes(batch, weight, last)
        return self._again(batch)

    def _fits(self, batch: Batch) -> bool:
        """Whether it is shaped as what is captured; until something is, as the newest: an epoch that is gone on with may begin with its last."""
        if len(tensors(batch)) < len(batch):
            self._tell("the batch has values that are no tensors")
            return False
        if batch.keys() == self._inputs.keys() and all(
            _alike(batch[name], one) for name, one in self._inputs.items()
        ):
            return True
        if self._replay is None:
            self._inputs, self._warm_ups = (
                {name: torch.empty_like(tensor) for name, tensor in batch.items()},
                WARM_UPS,
            )
        return self._replay is None

    def _captured(self) -> bool:
        try:
            self._replay = self.recorder.capture(self._step)
        except RuntimeError as error:
            self.stepper.optimizer.zero_grad(set_to_none=True)
            what = words_of(error)[:200]
            self._tell(what)
        return not self._failed

    def _tell(self, what: str) -> None:
        self._failed = True
        self.say(
            f"note: cuda_graph=true: the step cannot be captured ({what}); it runs kernel by kernel"
        )

    def _step(self) -> None:
        """What is captured."""
        found = self._unmarked(self._inputs, 1.0, True)
        check_outcome(found)
        self.stepper.update()
        self._found = Outcome(
            found.loss.detach(),
            {name: one.detach() for name, one in found.sums.items()},
            found.count,
        )

    def _again(self, batch: Batch) -> Outcome:
        assert self._replay is not None
        own = list(self._inputs.values())
        new = [batch[name] for name in self._inputs]
        torch._foreach_copy_(own, new)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        self.set_rates()
        self._replay()
        found = self._found
        assert found is not None
        self.stepper.updated = True
        self.passes.mark("forward")
        return Outcome(
            found.loss.clone(), {name: one.clone() for name, one in found.sums.items()}, found.count
        )


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype
