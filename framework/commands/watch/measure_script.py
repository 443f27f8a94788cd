"""Measure what the hooks did not see of a script: its DataLoader and its items."""

import itertools
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Subset

from framework.commands.watch.torch_hooks import OUTSIDE, VALIDATION, TorchHooks
from framework.contracts.span import Span
from framework.data.dataset import HOST, is_named_tuple, is_number, title_of
from framework.diagnosis.facts import ItemFacts, LoaderFacts, ScriptFacts
from framework.measure import stack_sampler, statistics
from framework.measure.host import num_cores
from framework.measure.usage import MachineUse
from framework.order.batches import spread
from framework.system.rng import generator_mark, kept_generators

MOST_LINES = 3
LEAST_LINE = 0.1  # a line with a smaller share is left out


def gather_script_facts(hooks: TorchHooks, machine: MachineUse, may_read: bool) -> ScriptFacts:
    """Return what the hooks saw. If ``may_read``, read items of a copy of the Dataset."""
    counts, loader, device = hooks.counts, hooks.loader, hooks.device
    spans = hooks.spans()
    outside = spans.pop(OUTSIDE, Span())
    validation = spans.pop(VALIDATION, Span())
    items = loader_facts = None
    if loader is not None:
        if may_read and not isinstance(loader.dataset, IterableDataset):
            with kept_generators(device), suppress(Exception):  # a Dataset may do anything
                items = measure_items(loader.dataset)
        dataset = loader.dataset
        while isinstance(dataset, Subset):  # it only chooses items
            dataset = dataset.dataset
        path = title_of(dataset)
        module, _, name = path.partition(".")
        script = sys.modules["__main__"]
        if module == "__main__" and script.__file__ is not None:  # as another program imports it
            spec = script.__spec__  # of a script that was started by ``-m``
            path = f"{Path(script.__file__).stem if spec is None else spec.name}.{name}"
        loader_facts = LoaderFacts(
            workers=loader.num_workers,
            batch_size=loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
            pins=loader.pin_memory,
            persists=loader.persistent_workers,
            dataset=path,
        )
    return ScriptFacts(
        spans=spans,
        steps=counts.steps,
        records=counts.records,
        compute_cores=counts.compute_cpu_s / max(counts.compute_s, 1e-9),
        num_cores=num_cores(),
        num_threads=torch.get_num_threads(),
        loader=loader_facts,
        items=items,
        gpu=torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        start_s=statistics.median(counts.start_s) if counts.start_s else 0.0,
        epochs=counts.epochs,
        outside_s=outside.total_s,
        validation_s=validation.total_s,
        before_s=counts.before_s,
        first_s=counts.first_s,
        ranks=int(os.environ.get("WORLD_SIZE", "1")),
        others_cores=0.0 if "RANK" in os.environ else machine.others_cores,
        lines=tuple(hooks.sampler.largest_lines("step", MOST_LINES, LEAST_LINE)),
        syncs=tuple(hooks.calls.noted()),
    )


def measure_items(dataset: Any) -> ItemFacts:
    """Read items of a copy: a handle that the Dataset opened here would break in forked workers."""
    dataset = deepcopy(dataset)
    num_items = len(dataset)
    order = spread(num_items, min(64, num_items)).tolist()
    images: list[tuple[int, int]] = []
    times_s: list[float] = []
    with _noted_images(images, times_s):
        item = dataset[0]
        times_s.clear()
        start, cpu_s = time.perf_counter(), time.process_time()
        num_read = 0
        for index in order:
            dataset[index]
            num_read += 1
            if time.perf_counter() - start > 1.0:
                break
        took_s = time.perf_counter() - start
        cpu_s = time.process_time() - cpu_s
    indices = itertools.cycle(order)
    sampler = stack_sampler.StackSampler("items")
    sampler.start()
    try:
        while time.perf_counter() - start < took_s + 0.3:
            dataset[next(indices)]
    finally:
        sampler.stop()
    item_bytes, refusal = repeated_item_bytes(dataset)
    size = None
    values = list(item.values()) if isinstance(item, dict) else item
    for value in values if isinstance(values, list | tuple) else [values]:
        shape = tuple(getattr(value, "shape", ()))
        if len(shape) == 3:  # the first array [C, H, W] or [H, W, C]
            size = shape[:2] if shape[2] in (1, 3) else shape[1:]
            break
    return ItemFacts(
        item_s=took_s / num_read,
        cpu_share=min(1.0, cpu_s / took_s),
        num_items=num_items,
        item_bytes=item_bytes,
        refusal=refusal,
        decoded=sorted(images)[len(images) // 2] if images else None,
        decode_share=sum(times_s) / took_s,
        size=size,
        lines=tuple(sampler.largest_lines("items", MOST_LINES, LEAST_LINE)),
    )


@contextmanager
def _noted_images(images: list[tuple[int, int]], times_s: list[float]) -> Generator[None]:
    undo = ExitStack()

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
        undo.callback(setattr, owner, name, before)

    pillow: Any = sys.modules.get("PIL.ImageFile")
    opencv: Any = sys.modules.get("cv2")
    with undo:
        if pillow is not None:
            replace(pillow.ImageFile, "load", lambda args, _: args[0].size[::-1])
        if opencv is not None:
            replace(opencv, "imread", lambda _, result: result.shape[:2])
            replace(opencv, "imdecode", lambda _, result: result.shape[:2])
        yield


def repeated_item_bytes(dataset: Any) -> tuple[int, str]:
    """Read some items twice. Return the bytes of one, or 0 and why packing cannot replace them."""
    num_items = len(dataset)
    with kept_generators(HOST):
        before = generator_mark()
        first = _arrays(dataset[0])
        for index in spread(num_items, min(16, num_items)).tolist():
            item, again = _arrays(dataset[index]), _arrays(dataset[index])
            if first.keys() != item.keys():
                return 0, f"item {index}: has other fields than item 0"
            for name, array in item.items():
                if not is_number(array.dtype):
                    return 0, f"item {index}: field {name} is no array of numbers"
                if (array.shape, array.dtype) != (first[name].shape, first[name].dtype):
                    kind = f"{array.dtype} {list(array.shape)}"
                    return 0, f"item {index}: field {name} is {kind}, and another array in item 0"
                if array.tobytes() != again[name].tobytes():
                    return 0, f"item {index}: reading it twice gives another {name}"
        if generator_mark() != before:
            return 0, "the items draw random numbers, although both readings gave the same bytes"
    return sum(array.nbytes for array in first.values()), ""


def _arrays(item: Any, name: str = "") -> dict[str, np.ndarray]:
    """Return copies of the values of nested dicts, tuples and lists by their dotted names."""
    if is_named_tuple(item):
        item = item._asdict()
    elif isinstance(item, tuple | list):
        item = {f"field{number}": value for number, value in enumerate(item)}
    if isinstance(item, dict):
        arrays: dict[str, np.ndarray] = {}
        for part, value in item.items():
            arrays |= _arrays(value, f"{name}.{part}")
        return arrays
    if isinstance(item, Tensor):
        item = item.detach().cpu()
        # NumPy has no bfloat16.
        item = (item.view(torch.int16) if item.dtype == torch.bfloat16 else item).numpy()
    return {name.removeprefix(".") or "value": np.array(item)}
