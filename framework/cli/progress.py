"""Pack stores with a progress bar, and print what was made; bars for other work."""

import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from hydra.core.hydra_config import HydraConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from framework.config.prepare_data import packed_from_others, prepare
from framework.contracts.records import is_numbered, notes_of
from framework.errors import listed, printable, say
from framework.pack.pack_store import pack
from framework.pack.packing import OnProgress, Packed, Packing, PackProgress
from framework.system.safe_text import SafeConsole


def pack_missing(config: dict[str, Any], allowed: Sequence[str]) -> None:
    """Pack the stores that ``config`` describes and that are missing.

    Print a note for an existing store that was packed from another source than the typed one.
    """
    typed = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    if any(word.lstrip("+").startswith(("source=", "prepare.")) for word in typed):
        for path, source in packed_from_others(config):
            words = f"{path} was packed before, from {source}, and is read as it is"
            _note(f"{words}; dataset=OTHER packs anew")
    prepare(config, allowed, show_packing, _note)


def print_notes(part: object) -> None:
    """Print what the user should know about an input, or about the rule of splits."""
    for note in notes_of(part):
        _note(note)


def _note(text: str) -> None:
    say(f"note: {text}", sys.stderr)


def show_packing(packing: Packing, num_workers: int | None = None) -> Packed:
    """Pack with a progress bar on standard error, and print what was made."""
    with progress_bar(packing.path) as (console, tell):
        packed = pack(packing, num_workers, tell, on_note=_note)
    manifest = packed.manifest
    lines: list[str] = []
    if manifest is not None and manifest.classes:
        names = [f"{number} = {name}" for number, name in enumerate(manifest.classes)]
        labels = printable(listed(names))
        if is_numbered(manifest.classes):
            labels = f"numbers as they are, 0 to {len(names) - 1}"
        lines.append(f"labels: {labels}")
    total = sum(split.num_records for split in packed.splits)
    for split in packed.splits:
        share = f"{split.num_records / total:.2%} of the records"
        lines.append(f"{split.name}: {split.num_records} records, {share}, in {split.path}")
    if manifest is not None:
        resumed = f" ({packed.resumed} items had been finished before)" if packed.resumed else ""
        rate = manifest.num_records / packed.seconds
        lines.append(
            f"packed {manifest.num_records} records into {', '.join(packing.paths.values())}: "
            f"{packed.num_bytes:,} bytes, {packed.seconds:.1f} s, {rate:,.0f} records/s, "
            f"{len(packed.bad)} skipped{resumed}"
        )
    else:
        others = "another part has made the store"
        if packed.waiting:
            others = (
                f"{packed.waiting} jobs of other parts are not done yet: "
                "the last part to end makes the store"
            )
        lines.append(f"part {packing.part} of {packing.parts} is done; {others}")
    for line in lines:
        console.print(line, soft_wrap=True)
    sys.stderr.flush()
    return packed


@contextmanager
def progress_bar(name: str) -> Generator[tuple[Console, OnProgress]]:
    """Yield the console and a function that draws the bar of a phase, on a terminal."""
    figures = "{task.completed}/{task.total}  {task.fields[rate]:,.0f} records/s  "
    figures += "{task.fields[mb]:,.1f} MB"
    bar = _bar("{task.fields[phase]} {task.description}", TextColumn(figures))
    phase, began, before = "", 0.0, 0  # and the time and the records at its beginning
    with bar:
        task = bar.add_task(name, total=None, mb=0.0, rate=0.0, phase="preparing")

        def tell(now: PackProgress) -> None:
            nonlocal phase, began, before
            if now.phase != phase:
                phase, began, before = now.phase, time.monotonic(), now.records
                bar.reset(task, total=now.num_items)
            bar.update(
                task,
                completed=now.records if phase == "joining" else now.items,
                total=now.num_items,
                mb=now.num_bytes / 1e6,
                rate=(now.records - before) / max(1e-3, time.monotonic() - began),
                phase=phase,
            )

        yield bar.console, tell


@contextmanager
def counted_bar(words: str, total: int | None = None) -> Generator[Callable[..., None]]:
    """Yield a function that takes ``completed``, ``advance`` or ``total`` of counted work."""
    with _bar("{task.description}", MofNCompleteColumn()) as bar:
        yield partial(bar.update, bar.add_task(printable(words), total=total))


def _bar(words: str, figures: Any) -> Progress:
    """Return a bar that is drawn on a terminal only, and removed at the end."""
    console = SafeConsole(stderr=True)
    return Progress(
        TextColumn(words, markup=False),
        BarColumn(),
        figures,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
