"""Packing with a progress bar."""

import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from framework.contracts import Manifest, RecordInput
from framework.measure.host import num_cores
from framework.pack.run import MakeWriter, pack


def pack_with_progress(source: RecordInput, make_writer: MakeWriter, path: str, num_workers: int | None = None) -> Manifest:
    """Pack, showing records, bytes and time left on standard error; a last line says what was made."""
    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("packing {task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} records, {task.fields[mb]:.1f} MB"),
    )
    total = source.manifest.num_records
    bar = Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    )
    workers = default_workers(total) if num_workers is None else num_workers
    with bar:
        task = bar.add_task(path, total=total, mb=0.0)
        manifest = pack(source, make_writer, path, workers, lambda done, size: bar.update(task, completed=done, mb=size / 1e6))
    console.print(f"packed {manifest.num_records} records into {path}", soft_wrap=True)
    sys.stderr.flush()
    return manifest


def default_workers(num_records: int) -> int:
    """A process per core; none for what is packed before processes have started."""
    return num_cores() if num_records >= 5_000 else 0  # starting two processes costs about as much as 5,000 small records
