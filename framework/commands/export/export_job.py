"""Export a model: write it beside its place, compare it, and publish it."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework.cli.units import size
from framework.commands.export.compare_export import Comparison, compare, lines
from framework.commands.export.export import CARD, FORMATS, check_free
from framework.commands.export.export_formats import (
    AotiFormat,
    ExportFormat,
    SafetensorsFormat,
    TorchExportFormat,
)
from framework.commands.export.exportable import Exportable, form_of_tensor, make_exportable
from framework.commands.export.hub_folder import write_hub_files
from framework.commands.export.model_card import CardFacts, model_card
from framework.commands.export.onnx_format import OnnxFormat
from framework.config.saved_run import SavedRun
from framework.errors import ResourceError, say
from framework.system.durable import move, sync, temporary_name, write_text

HUGGING_FACE = "huggingface"
MAKE: dict[str, type[ExportFormat]] = {
    "safetensors": SafetensorsFormat,
    "onnx": OnnxFormat,
    "torch_export": TorchExportFormat,
    "aoti": AotiFormat,
    HUGGING_FACE: SafetensorsFormat,
}


@dataclass(frozen=True)
class ExportChoice:
    """What was asked for; the keys of ``conf/export.yaml``."""

    to: str
    path: Path
    preprocess: bool
    tolerance: float
    num_records: int
    repeats: int
    batch_size: int | None
    data: Any


def export_model(run: SavedRun, choice: ExportChoice) -> None:
    """Export the model of a run, and print how it compares.

    Raises:
        ConfigError: C350 to C352 for data that the model cannot take, C382 and C383 for a model
            that cannot be exported, C384 if the export differs.
        ResourceError: R101 if the disk refuses a file, R112 or R193 without a package or compiler.
    """
    form = MAKE[choice.to]()
    form.check()
    exportable = make_exportable(
        run, choice.data, choice.num_records, choice.preprocess, choice.batch_size
    )
    folder = temporary_name(choice.path)
    is_file = bool(choice.path.suffix)
    name = choice.path.name if is_file else f"model{FORMATS[choice.to] or '.safetensors'}"
    try:
        folder.mkdir(parents=True)
        form.write(run, exportable, folder / name)
        runner = form.read(run, exportable, folder / name)
        comparison = compare(exportable, runner, choice.tolerance, choice.repeats)
        _write_others(run, choice, exportable, comparison, folder, name)
        _publish(folder, choice.path, is_file)
    except OSError as error:
        what = f"cannot write: {error.strerror or error}"
        fix = "free space or choose another place"
        raise ResourceError(101, str(choice.path), what, fix) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _print(choice, exportable, comparison)


def _write_others(
    run: SavedRun,
    choice: ExportChoice,
    exportable: Exportable,
    comparison: Comparison,
    folder: Path,
    name: str,
) -> None:
    """Write the model card, and for the Hub its configuration."""
    facts = CardFacts.of_run(run)
    words = lines(comparison, choice.tolerance)
    card = model_card(facts, exportable, words, choice.to, choice.preprocess, folder / name)
    if choice.to == HUGGING_FACE:
        write_hub_files(run, facts, exportable, card, folder)
    elif choice.path.suffix:
        write_text(folder / f"{choice.path.name}.{CARD}", card)
    else:
        write_text(folder / CARD, card)


def _publish(folder: Path, path: Path, is_file: bool) -> None:
    """Put finished files in their place: the folder at once, or each file, the model last."""
    for file in folder.iterdir():
        sync(file)
    if not is_file:
        if path.is_dir():
            path.rmdir()  # empty, as was checked
        move(folder, path)
        return
    files = sorted(folder.iterdir(), key=lambda file: file.name == path.name)
    for file in files:
        check_free(path.with_name(file.name))
    for file in files:
        move(file, path.with_name(file.name))


def _print(choice: ExportChoice, exportable: Exportable, comparison: Comparison) -> None:
    num_bytes = sum(
        os.path.getsize(place)
        for place in (choice.path.rglob("*") if choice.path.is_dir() else [choice.path])
    )
    say(f"exported: {choice.path} ({size(num_bytes)})")
    for title, names, tensors in (
        ("in", exportable.input_names, exportable.inputs),
        ("out", exportable.output_names, exportable.expected),
    ):
        for name, tensor in zip(names, tensors, strict=True):
            say(f"{title}: {name} {form_of_tensor(tensor, exportable.batch_size)}")
    for line in lines(comparison, choice.tolerance):
        say(line)
