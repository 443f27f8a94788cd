"""Compare an export with the model on real records, and time both."""

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from framework.commands.export.export_formats import Runner
from framework.commands.export.exportable import Exportable
from framework.errors import ConfigError
from framework.measure.statistics import median, spread_share

WARM_UP = 3  # runs that are not counted


class Comparison(NamedTuple):
    """How an export differs from the model.

    Attributes:
        largest: The largest difference of any number; of class numbers, the share that differs.
        num_records: How many records were compared.
        model_s: Seconds of the model on all of them, each time.
        export_s: Seconds of the export, in turn with the model.
    """

    largest: float
    num_records: int
    model_s: tuple[float, ...]
    export_s: tuple[float, ...]


def compare(exportable: Exportable, runner: Runner, tolerance: float, repeats: int) -> Comparison:
    """Compare on all records at once and, if the export takes any number, on one alone.

    Raises:
        ConfigError: C384 if they differ by more than ``tolerance``.
    """
    inputs = exportable.inputs
    counts = [len(inputs[0])]
    if exportable.batch_size is None:
        counts.append(1)
    largest = 0.0
    with torch.no_grad():
        for count in counts:
            outputs = runner([tensor[:count] for tensor in inputs])
            expected = [tensor[:count] for tensor in exportable.expected]
            if len(outputs) != len(expected):
                raise _differs(f"has {len(outputs)} outputs instead of {len(expected)}", tolerance)
            for name, output, wanted in zip(
                exportable.output_names, outputs, expected, strict=True
            ):
                if output.shape != wanted.shape:
                    shapes = f"{tuple(output.shape)} instead of {tuple(wanted.shape)}"
                    raise _differs(f"gives {name} of shape {shapes}", tolerance)
                largest = max(largest, difference(output, wanted))
        if not largest <= tolerance:
            raise _differs(f"differs from the model by {largest:.3g}", tolerance)
        model_s, export_s = _timed(exportable, runner, repeats)
    return Comparison(largest, counts[0], model_s, export_s)


def _differs(what: str, tolerance: float) -> ConfigError:
    fix = "raise it if this is small enough, or choose another format"
    return ConfigError(384, f"tolerance = {tolerance:g}", f"the export {what}", fix)


def difference(output: Tensor, expected: Tensor) -> float:
    """Return the largest difference of two tensors; of integers, the share that differs.

    A number that is NaN or infinite in one alone is an infinite difference.
    """
    output = output.to(expected.device)
    if not expected.numel():
        return 0.0
    if not expected.is_floating_point():
        return float((output != expected).double().mean())
    equal = (output == expected) | (output.isnan() & expected.isnan())
    apart = (output.double() - expected.double()).abs()
    apart = torch.where(equal, 0.0, apart.nan_to_num(nan=math.inf))
    return float(apart.max())


def _timed(
    exportable: Exportable, runner: Runner, repeats: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the seconds of the model and of the export, measured in turn."""
    model_s: list[float] = []
    export_s: list[float] = []
    for _ in range(WARM_UP + repeats):
        model_s.append(_seconds(lambda: exportable.module(*exportable.inputs), exportable))
        export_s.append(_seconds(lambda: runner(exportable.inputs), exportable))
    return tuple(model_s[WARM_UP:]), tuple(export_s[WARM_UP:])


def _seconds(compute: Callable[[], object], exportable: Exportable) -> float:
    begin = time.perf_counter()
    compute()
    if exportable.inputs[0].is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def lines(comparison: Comparison, tolerance: float) -> list[str]:
    """Return what is printed of a comparison."""
    records = f"{comparison.num_records} records"
    model, export = (_words(seconds) for seconds in (comparison.model_s, comparison.export_s))
    factor = median(comparison.model_s) / median(comparison.export_s)
    times = f"model {model}, export {export} ({factor:.2f} x as fast)"
    repeats = len(comparison.model_s)
    return [
        f"largest difference: {comparison.largest:.3g} over {records} (tolerance {tolerance:g})",
        f"time of {records}: {times}, measured {repeats} times in turn",
    ]


def _words(seconds: Sequence[float]) -> str:
    return f"{1e3 * median(seconds):.3g} ms ± {100 * spread_share(seconds):.0f} %"
