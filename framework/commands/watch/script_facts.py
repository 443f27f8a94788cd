"""What is known of a watched script: its spans, its DataLoader, its items and its model."""

import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, Subset

from framework.commands.diagnose.device_syncs import Sync
from framework.commands.diagnose.host_python import PythonLine
from framework.commands.watch.item_check import ItemsDifferError, copied, repeated_item_bytes
from framework.commands.watch.python_lines import lines_of, lock_share
from framework.commands.watch.step_recorder import OUTSIDE, VALIDATION, StepRecorder
from framework.commands.watch.torch_hooks import TorchHooks
from framework.contracts.span import Span, shares, step_s, waiting_share
from framework.data.dataset import title_of
from framework.measure.host import num_cores
from framework.measure.machine_watch import MachineUse
from framework.measure.stack_sampler import StackSampler
from framework.measure.statistics import median
from framework.order.batches import spread
from framework.system.rng import kept_generators

ITEMS_S = 1.0  # for reading items
MOST_ITEMS = 64
SAMPLED_S = 0.3  # for sampling which lines make them
LOCK_S = 0.2  # for measuring how long they hold Python's lock
FORWARD_S = 0.5  # for forward passes of half a batch and of a whole one
LEAST_REPEATS = 5


@dataclass(frozen=True)
class LoaderFacts:
    """The DataLoader of training."""

    workers: int
    batch_size: int | None  # None: the Dataset makes whole batches
    pins: bool = False
    persists: bool = False  # whether workers outlive an epoch
    dataset: str = ""  # the path of its class


@dataclass(frozen=True)
class ItemFacts:
    """Items of the Dataset, read in this process after the script's end.

    Attributes:
        item_s: Seconds of one.
        cpu_share: CPU seconds per second; near 0 means waiting for the disk.
        num_items: Of the Dataset.
        item_bytes: Of one, once decoded; 0 if it cannot be stored.
        refusal: Why the items cannot be stored; empty if they can.
        decoded: Height and width of the median decoded image.
        decode_share: The share of ``item_s`` that decodes images.
        size: Height and width of the image in an item.
        lock_share: The share of ``item_s`` for which Python's lock is held.
        lines: Lines of Python with their shares of ``item_s``.
    """

    item_s: float
    cpu_share: float
    num_items: int
    item_bytes: int = 0
    refusal: str = ""
    decoded: tuple[int, int] | None = None
    decode_share: float = 0.0
    size: tuple[int, int] | None = None
    lock_share: float = 1.0
    lines: tuple[PythonLine, ...] = ()


@dataclass(frozen=True)
class ScriptFacts:
    """All that the rules may look at.

    Attributes:
        spans: Of the measured training steps.
        steps: The number of these steps.
        records: Their records.
        compute_cores: CPU seconds per second without waiting.
        num_cores: That this process may use.
        num_threads: That torch uses for an operator.
        start_s: The median time until a measured epoch's first batch.
        epochs: Epochs that began.
        outside_s: Seconds between epochs.
        validation_s: Seconds of validation.
        before_s: Seconds before the first batch was asked for.
        first_s: Seconds of the first step, which is not measured.
        fixed_share: The share of a forward pass that does not grow with the batch.
        ranks: Of the run, of which this process is the first.
        others_cores: Cores that other programs kept busy.
        lines: Lines of Python with their shares of a step.
        syncs: Calls of one step that wait for the device.
    """

    spans: Mapping[str, Span]
    steps: int
    records: int
    compute_cores: float
    num_cores: int
    num_threads: int
    loader: LoaderFacts | None = None
    items: ItemFacts | None = None
    gpu: str | None = None
    start_s: float = 0.0
    epochs: int = 0
    outside_s: float = 0.0
    validation_s: float = 0.0
    before_s: float = 0.0
    first_s: float = 0.0
    fixed_share: float | None = None
    ranks: int = 1
    others_cores: float = 0.0
    lines: tuple[PythonLine, ...] = ()
    syncs: tuple[Sync, ...] = field(default=())

    @property
    def step_s(self) -> float:
        """Seconds of a training step."""
        return step_s(self.spans) / max(1, self.steps)

    @property
    def waiting(self) -> float:
        """The share of a step that waits for data."""
        return waiting_share({name: span.total_s for name, span in self.spans.items()}) or 0.0

    @property
    def headroom(self) -> float:
        """The factor on the rate if no step waited for data."""
        return 1 / max(0.01, 1 - self.waiting)

    @property
    def compute_s(self) -> float:
        """Seconds of a step without waiting."""
        return self.step_s * (1 - self.waiting)

    @property
    def start_step_s(self) -> float:
        """Seconds in which an epoch's workers start, per step of the epoch."""
        if self.loader is None or not self.loader.workers or self.loader.persists:
            return 0.0
        return self.start_s * self.epochs / max(1, self.steps)

    @property
    def step_records(self) -> float:
        return self.records / max(1, self.steps)

    @property
    def data_limits(self) -> bool:
        """Whether waiting for data is the largest part of a step."""
        return self.largest in ("wait", "idle")

    @property
    def largest(self) -> str:
        """The span with the largest share of a step."""
        known = shares(self.spans)
        return max(known, key=lambda name: known[name], default="")

    @property
    def load_s(self) -> float:
        """Seconds in which one process makes the items of a step."""
        if self.loader is not None and self.loader.workers == 0:
            return self.step_s * self.waiting
        if self.items is None:
            return 0.0
        return self.items.item_s * self.step_records


def gather_script_facts(
    hooks: TorchHooks, machine: MachineUse, may_read: bool, may_call: bool
) -> ScriptFacts:
    """Return the facts.

    Args:
        hooks: What was seen of the script.
        machine: How the machine was used meanwhile.
        may_read: Whether to read items of a copy of the Dataset.
        may_call: Whether to call the model. It may remember its calls, so that a script that
            continues would learn something else.
    """
    recorder = hooks.recorder
    spans = recorder.spans()
    outside = spans.pop(OUTSIDE, Span())
    validation = spans.pop(VALIDATION, Span())
    counts = recorder.counts
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    items = None
    fixed_share = None
    with kept_generators(recorder.device):
        if may_read:
            items = _tried(lambda: _items(recorder.loader))
        if may_call and ranks == 1:  # a wrapped model waits for the other ranks
            fixed_share = _tried(lambda: _fixed_share(recorder))
    gpu = None
    if recorder.device.type == "cuda":
        gpu = torch.cuda.get_device_name(recorder.device)
    return ScriptFacts(
        spans=spans,
        steps=counts.steps,
        records=counts.records,
        compute_cores=counts.compute_cpu_s / max(counts.compute_s, 1e-9),
        num_cores=num_cores(),
        num_threads=torch.get_num_threads(),
        loader=_loader_facts(recorder.loader),
        items=items,
        gpu=gpu,
        start_s=median(counts.start_s) if counts.start_s else 0.0,
        epochs=counts.epochs,
        outside_s=outside.total_s,
        validation_s=validation.total_s,
        before_s=counts.before_s,
        first_s=counts.first_s,
        fixed_share=fixed_share,
        ranks=ranks,
        others_cores=0.0 if "RANK" in os.environ else machine.others_cores,
        lines=tuple(hooks.sampled.lines()),
        syncs=tuple(hooks.calls.noted()),
    )


def _tried(measure: Callable[[], Any]) -> Any:
    """Return what ``measure`` returns, or None: a user's Dataset and model may do anything."""
    try:
        return measure()
    except Exception:  # noqa: BLE001
        return None


def _loader_facts(loader: DataLoader[Any] | None) -> LoaderFacts | None:
    if loader is None:
        return None
    return LoaderFacts(
        workers=loader.num_workers,
        batch_size=loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
        pins=loader.pin_memory,
        persists=loader.persistent_workers,
        dataset=_path_of(title_of(_innermost(loader.dataset))),
    )


def _path_of(title: str) -> str:
    """Return under which path another program imports a class of the script."""
    module, _, name = title.partition(".")
    script = sys.modules["__main__"]
    if module != "__main__" or script.__file__ is None:
        return title
    spec = script.__spec__  # of a script that was started by ``-m``
    return f"{Path(script.__file__).stem if spec is None else spec.name}.{name}"


def _innermost(dataset: Any) -> Any:
    """Return the Dataset of which others only choose items."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def _items(loader: DataLoader[Any] | None) -> ItemFacts | None:
    """Read items of a copy of the Dataset."""
    if loader is None or isinstance(loader.dataset, IterableDataset):
        return None
    dataset = copied(loader.dataset)
    num_items = len(dataset)
    images: list[tuple[int, int]] = []
    times_s: list[float] = []
    sampler = StackSampler()
    with _noted_images(images, times_s):
        item = dataset[0]
        times_s.clear()
        start = time.perf_counter()
        cpu_s = time.process_time()
        num_read = 0
        for index in spread(num_items, min(MOST_ITEMS, num_items)).tolist():
            dataset[index]
            num_read += 1
            if time.perf_counter() - start > ITEMS_S:
                break
        took_s = time.perf_counter() - start
        cpu_s = time.process_time() - cpu_s
    indices = itertools.cycle(spread(num_items, min(MOST_ITEMS, num_items)).tolist())
    sampler.start()
    try:
        while time.perf_counter() - start < took_s + SAMPLED_S:
            dataset[next(indices)]
    finally:
        sampler.stop()
    refusal = ""
    item_bytes = 0
    try:
        item_bytes = repeated_item_bytes(dataset)
    except ItemsDifferError as error:
        refusal = str(error)
    return ItemFacts(
        item_s=took_s / num_read,
        cpu_share=min(1.0, cpu_s / took_s),
        num_items=num_items,
        item_bytes=item_bytes,
        refusal=refusal,
        decoded=_median_size(images),
        decode_share=sum(times_s) / took_s,
        size=_image_size(item),
        lock_share=lock_share(lambda: dataset[next(indices)], LOCK_S),
        lines=tuple(lines_of(sampler, "items")),
    )


def _median_size(images: list[tuple[int, int]]) -> tuple[int, int] | None:
    return sorted(images)[len(images) // 2] if images else None


def _image_size(item: Any) -> tuple[int, int] | None:
    """Return the height and the width of the first array [C, H, W] or [H, W, C] in an item."""
    values = list(item.values()) if isinstance(item, dict) else item
    for value in values if isinstance(values, list | tuple) else [values]:
        shape = tuple(getattr(value, "shape", ()))
        if len(shape) == 3:
            return shape[:2] if shape[2] in (1, 3) else shape[1:]
    return None


@contextmanager
def _noted_images(images: list[tuple[int, int]], times_s: list[float]) -> Generator[None]:
    """Note the size of each image that Pillow or OpenCV decodes, and the time that it takes."""
    undo: list[Callable[[], None]] = []

    def replace(owner: Any, name: str, size: Callable[[Any, Any], tuple[int, int]]) -> None:
        before = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = before(*args, **kwargs)
            took_s = time.perf_counter() - start
            with suppress(Exception):
                images.append(size(args, result))
                times_s.append(took_s)
            return result

        setattr(owner, name, timed)
        undo.append(lambda: setattr(owner, name, before))

    pillow: Any = sys.modules.get("PIL.ImageFile")
    if pillow is not None:
        replace(pillow.ImageFile, "load", lambda args, _: args[0].size[::-1])
    opencv: Any = sys.modules.get("cv2")
    for name in ("imread", "imdecode") if opencv is not None else ():
        replace(opencv, name, lambda _, result: result.shape[:2])
    try:
        yield
    finally:
        for back in undo:
            back()


def _fixed_share(recorder: StepRecorder) -> float | None:
    """Return the share a / t of a forward pass t = a + b * records.

    Half a batch and a whole one run in turn. The least time of each counts, since other programs
    only add to it.
    """
    model = recorder.root
    sample = recorder.sample
    if model is None or sample is None or len(sample) < 2:
        return None
    whole = sample.to(recorder.device)
    sizes = (whole, whole[: len(whole) // 2])
    least_s = [math.inf, math.inf]
    modes = [(module, module.training) for module in model.modules()]  # some may be frozen
    model.eval()  # statistics and dropout stay as they are
    try:
        start = time.perf_counter()
        for number in itertools.count():
            for place, inputs in enumerate(sizes):
                least_s[place] = min(least_s[place], _forward_s(model, inputs))
            if number >= LEAST_REPEATS and time.perf_counter() - start > FORWARD_S:
                break
    finally:
        for module, training in modes:
            module.training = training
    share = len(sizes[1]) / len(whole)
    fixed = (least_s[1] - share * least_s[0]) / (1 - share) / least_s[0]
    return min(1.0, max(0.0, fixed))


def _forward_s(model: nn.Module, inputs: Tensor) -> float:
    start = time.perf_counter()
    with torch.no_grad():
        model(inputs)
    if inputs.device.type == "cuda":
        torch.cuda.synchronize(inputs.device)
    return time.perf_counter() - start
