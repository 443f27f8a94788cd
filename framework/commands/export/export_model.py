"""Export a model: write it beside its place, compare it on real records, add a card, publish."""

import hashlib
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import yaml
from torch import Tensor

from framework import __version__
from framework.cli.tables import size
from framework.commands.export.export import CARD, FORMATS, ExportOptions, check_free
from framework.commands.export.export_formats import (
    Exportable,
    Runner,
    check_format,
    make_exportable,
    read_export,
    write_export,
)
from framework.config.saved_run import SavedRun, chosen_file
from framework.errors import ConfigError, ResourceError, say
from framework.measure.statistics import median, spread_share
from framework.system import run_dir as files
from framework.system.durable import move, sync, temporary_name, write_text

WARM_UP = 3  # runs that are not counted
USER = re.compile(r"://[^/@\s]+@")  # a name and a password in an address, which nobody publishes
USE = {
    "safetensors": """```python
from framework import load

run = load("{run_dir}")             # the run's own directory, or
state = safetensors.torch.load_file("{name}")  # the weights alone
```""",
    "onnx": """```python
import onnxruntime

session = onnxruntime.InferenceSession("{name}")
outputs = session.run(None, {{{feed}}})
```""",
    "torch_export": """```python
import torch

outputs = torch.export.load("{name}").module()({inputs})
```""",
    "aoti": """```python
import torch

outputs = torch._inductor.aoti_load_package("{name}")({inputs})
```""",
}


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
    name = path.name if path.suffix else f"model{FORMATS[to]}"
    try:
        folder.mkdir(parents=True)
        write_export(to, run, exportable, folder / name)
        runner = read_export(to, run, folder / name)
        compared = compare(exportable, runner, options.tolerance, options.repeats)
        card = model_card(run, exportable, compared, to, options.preprocess, folder / name)
        write_text(folder / (f"{name}.{CARD}" if path.suffix else CARD), card)
        for file in folder.iterdir():
            sync(file)
        if path.suffix:
            made = sorted(folder.iterdir(), key=lambda file: file.name == name)  # the model last
            for file in made:
                check_free(path.with_name(file.name))
            for file in made:
                move(file, path.with_name(file.name))
        else:
            if path.is_dir():
                path.rmdir()  # empty, as was checked
            move(folder, path)
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


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def model_card(
    run: SavedRun,
    exportable: Exportable,
    compared: Sequence[str],
    to: str,
    preprocess: bool,
    model: Path,
) -> str:
    """Return the card of a model that was exported to the file ``model``, in Markdown.

    It is made of the files in the run's directory, in which secrets are only named.
    """
    shown = files.shown
    facts = files.read_object(run.run_dir / files.FACTS)
    summary = files.read_object(run.run_dir / files.SUMMARY)
    best = files.numbers(files.flat(summary.get("best") or summary.get("val")))
    best.pop("step", None)
    data = {
        split: files.mapping(known) for split, known in files.mapping(facts.get("data")).items()
    }
    name = shown(run.run_dir.resolve().name)
    takes = "what the model itself takes: normalized values"
    if preprocess:
        takes = "what the loader reads, such as uint8 pixels; preprocessing is inside"
    names = exportable.input_names
    use = USE[to].format(
        name=model.name,
        inputs=", ".join(names),
        feed=", ".join(f'"{name}": {name}' for name in names),
        run_dir=name,
    )
    keys = ("num_records", "source", "digest")
    splits = [
        (shown(split), *(shown(known.get(key) or "unknown") for key in keys))
        for split, known in data.items()
    ]
    classes = ", ".join(files.words(data.get("train", {}).get("classes")))
    versions = files.mapping(facts.get("versions"))
    started = {
        "command": " ".join(files.words(facts.get("command"))),
        "started": facts.get("started"),
        "git": facts.get("git"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    config = files.read_object(files.newest_config(run.run_dir))
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    fence = "```"
    while fence in text:
        fence += "`"
    weights = f"{run.weights} (sha256 {digest_of(chosen_file(run.run_dir, run.weights))})"
    metrics = [(shown(metric), f"{value:.6g}") for metric, value in best.items()]
    parts = [
        f"# {name}",
        f"Exported by Paceline {__version__} to `{to}`. It takes {takes}.",
        "## Use",
        use,
        _table(("tensor", "type and shape"), [form[1:] for form in exportable.forms]),
        "## Metrics",
        _table(("metric of the best validation", "value"), metrics),
        f"Weights: {weights}. Steps: {shown(summary.get('steps'))}.",
        "## Data",
        _table(("split", "records", "source", "digest"), splits),
        f"Classes: {shown(classes) or 'none are named'}.",
        "## Compared with the model",
        "\n".join(f"- {line}" for line in compared),
        f"SHA-256 of `{model.name}`: `{digest_of(model)}`.",
        "## Training",
        _table(("fact", "value"), [(fact, shown(value)) for fact, value in started.items()]),
        "## Configuration",
        f"{fence}yaml\n{text.rstrip()}\n{fence}",
    ]
    return USER.sub("://", "\n\n".join(part for part in parts if part)) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    cells = [[cell.replace("|", r"\|") for cell in row] for row in (head, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], f"| {' | '.join('---' for _ in head)} |", *lines[1:]])
