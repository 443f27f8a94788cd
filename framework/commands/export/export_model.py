"""Export a model: write it beside its place, compare it on real records, and publish it."""

import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from framework.cli.units import size
from framework.commands.export.export import CARD, FORMATS, ExportOptions, check_free
from framework.commands.export.export_formats import (
    Runner,
    check_format,
    read_export,
    write_export,
)
from framework.commands.export.exportable import Exportable, make_exportable
from framework.commands.export.model_card import CardFacts, model_card, write_hub_files
from framework.config.saved_run import SavedRun
from framework.errors import ConfigError, ResourceError, say
from framework.measure.statistics import median, spread_share
from framework.system.durable import move, sync, temporary_name, write_text

WARM_UP = 3  # runs that are not counted


def export_model(run: SavedRun, options: ExportOptions) -> None:
    """Export the model of a run, and print how it compares.

    Raises:
        ConfigError: C350 to C352 for data that the model cannot take, C382 and C383 for a model
            that cannot be exported, C384 if the export differs.
        ResourceError: R101 if the disk refuses a file, R112 or R193 without a package or compiler.
    """
    to, path = options.to, Path(options.output)
    check_format(to)
    exportable = make_exportable(
        run, options.val, options.num_records, options.preprocess, options.batch_size
    )
    folder = temporary_name(path)
    name = path.name if path.suffix else f"model{FORMATS[to] or '.safetensors'}"
    try:
        folder.mkdir(parents=True)
        write_export(to, run, exportable, folder / name)
        runner = read_export(to, run, folder / name)
        compared = compare(exportable, runner, options.tolerance, options.repeats)
        facts = CardFacts.of_run(run)
        card = model_card(facts, exportable, compared, to, options.preprocess, folder / name)
        if to == "huggingface":
            write_hub_files(run, facts, exportable, card, folder)
        else:
            write_text(folder / (f"{name}.{CARD}" if path.suffix else CARD), card)
        _publish(folder, path)
    except OSError as error:
        what = f"cannot write: {error.strerror or error}"
        fix = "free space or choose another place"
        raise ResourceError(101, str(path), what, fix) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    places = path.rglob("*") if path.is_dir() else [path]
    say(f"exported: {path} ({size(sum(map(os.path.getsize, places)))})")
    for title, tensor, form in exportable.forms:
        say(f"{title}: {tensor} {form}")
    for line in compared:
        say(line)


def _publish(folder: Path, path: Path) -> None:
    """Put finished files in their place: the folder at once, or each file, the model last."""
    for file in folder.iterdir():
        sync(file)
    if not path.suffix:
        if path.is_dir():
            path.rmdir()  # empty, as was checked
        move(folder, path)
        return
    files = sorted(folder.iterdir(), key=lambda file: file.name == path.name)
    for file in files:
        check_free(path.with_name(file.name))
    for file in files:
        move(file, path.with_name(file.name))


def compare(exportable: Exportable, runner: Runner, tolerance: float, repeats: int) -> list[str]:
    """Compare on all records at once and, if the export takes any number, on one alone.

    Returns:
        Lines on the largest difference of any number, or of class numbers the share that differs,
        and on the times of both, measured in turn.

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
            shapes = [[tuple(part.shape) for part in parts] for parts in (outputs, expected)]
            if shapes[0] != shapes[1]:
                what = f"gives outputs of the shapes {shapes[0]} instead of {shapes[1]}"
                raise _differs(what, tolerance)
            largest = max([largest, *map(difference, outputs, expected)])
        if not largest <= tolerance:
            raise _differs(f"differs from the model by {largest:.3g}", tolerance)
        model_s: list[float] = []
        export_s: list[float] = []
        for _ in range(WARM_UP + repeats):
            model_s.append(_seconds(lambda: exportable.module(*inputs), inputs))
            export_s.append(_seconds(lambda: runner(inputs), inputs))
    model_s, export_s = model_s[WARM_UP:], export_s[WARM_UP:]
    records = f"{counts[0]} records"
    factor = median(model_s) / median(export_s)
    times = f"model {_words(model_s)}, export {_words(export_s)} ({factor:.2f} x as fast)"
    return [
        f"largest difference: {largest:.3g} over {records} (tolerance {tolerance:g})",
        f"time of {records}: {times}, measured {repeats} times in turn",
    ]


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


def _seconds(compute: Callable[[], object], inputs: Sequence[Tensor]) -> float:
    begin = time.perf_counter()
    compute()
    if inputs[0].is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def _words(seconds: Sequence[float]) -> str:
    return f"{1e3 * median(seconds):.3g} ms ± {100 * spread_share(seconds):.0f} %"
