"""Packing and checking with a progress bar."""

import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from framework.cli.paths import CONF, SUFFIXES
from framework.config.prepare_data import packed_from_others, prepare
from framework.config.targets import did_you_mean
from framework.contracts.records import RecordInput, notes_of
from framework.data.classes import is_numbered, listed
from framework.errors import ConfigError, printable
from framework.pack.engine.jobs import MakeWriter
from framework.pack.engine.pack_store import pack
from framework.pack.engine.packing import Packed, Packing, PackProgress
from framework.pack.images import Preparation
from framework.store.hdf5_store import HDF5Writer

TYPES: dict[str, tuple[type, ...]] = {
    "encode": (str,),
    "resize": (int, type(None)),
    "max_side": (int, type(None)),
    "size": (list, type(None)),
    "quality": (int, type(None)),
    "color": (str, type(None)),
    "bit_depth": (int, type(None)),
    "layout": (str,),
    "max_pixels": (int,),
    "on_error": (str,),
    "one_file": (bool,),
    "part": (int, type(None)),
    "parts": (int,),
}
OF_PREPARATION = (
    "encode",
    "resize",
    "max_side",
    "size",
    "quality",
    "color",
    "bit_depth",
    "layout",
    "max_pixels",
)


def default_options() -> dict[str, Any]:
    """The keys of ``pack:`` as ``conf/pack.yaml`` has them."""
    found: Any = OmegaConf.to_container(OmegaConf.load(CONF / "pack.yaml"))
    return found["pack"]


def preparation_of(options: Mapping[str, Any]) -> Preparation:
    """What images are to become. ``options``: all keys of ``pack:``. ConfigError C101, C102 for one that is not sound."""
    for key, value in options.items():
        if key not in TYPES:
            close = did_you_mean(key, list(TYPES), "pack")
            raise ConfigError(
                102, f"pack.{key} = {value}", f"no such key{close}", "correct or remove it"
            )
        if not isinstance(value, TYPES[key]) or (
            isinstance(value, bool) and bool not in TYPES[key]
        ):
            wanted = " or ".join(
                "null" if kind is type(None) else kind.__name__ for kind in TYPES[key]
            )
            raise ConfigError(
                101, f"pack.{key} = {value}", "not a value it can have", f"give {wanted}"
            )
    if any(not isinstance(side, int) for side in options["size"] or ()):
        raise ConfigError(
            101, f"pack.size = {options['size']}", "not a value it can have", "give [height, width]"
        )
    return Preparation(**{key: options[key] for key in OF_PREPARATION})


def packing_of(
    source: RecordInput, options: Mapping[str, Any], make_writer: MakeWriter, path: str
) -> Packing:
    """A packing with these keys of ``pack:``, all of which must be there."""
    prepare = preparation_of(options)
    run = {key: options[key] for key in ("on_error", "one_file", "part", "parts")}
    return Packing(source, make_writer, path, prepare, **run)


def for_output(packing: Packing, target: str) -> Packing:
    """The packing with jobs' files that suit the writer called ``target``: its own, or HDF5 where it does not write stores."""
    suffix = SUFFIXES.get(target)
    return replace(packing, suffix=suffix or ".h5", make_part=None if suffix else HDF5Writer)


def pack_missing(config: dict[str, Any], allowed: Sequence[str]) -> None:
    """Pack the stores that ``config`` describes and that are not there yet. A note where the command line names the source of one that is there, and
    was packed from something else.
    """
    typed = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    if any(word.lstrip("+").startswith(("source=", "prepare.")) for word in typed):
        for path, source in packed_from_others(config):
            print(
                f"note: {path} was packed before, from {source}, and is read as it is; dataset=OTHER packs anew",
                file=sys.stderr,
            )
    prepare(config, allowed, _pack_one, lambda text: print(f"note: {text}", file=sys.stderr))


def _pack_one(
    source: RecordInput, changed: Mapping[str, Any], make_writer: MakeWriter, path: str, target: str
) -> Packed:
    """Pack with the default options but for those ``changed``; ``target``: the writer's name."""
    packing = packing_of(source, {**default_options(), **changed}, make_writer, path)
    return show_packing(for_output(packing, target), None)


def show_packing(packing: Packing, num_workers: int | None) -> Packed:
    """Pack, showing records, bytes and time left on standard error; a last line says what was made."""
    for note in notes_of(packing.source):
        print(f"note: {printable(note)}", file=sys.stderr)
    with progress_bar(packing.path) as (console, tell):
        packed = pack(packing, num_workers, tell)
    if packed.manifest is not None and packed.manifest.classes:
        console.print(f"labels: {_labels(packed.manifest.classes)}", soft_wrap=True, markup=False)
    console.print(_summary(packing, packed), soft_wrap=True, markup=False)
    sys.stderr.flush()
    return packed


def _labels(classes: Sequence[str]) -> str:
    """Which number stands for which class."""
    if is_numbered(classes):
        return f"numbers as they are, 0 to {len(classes) - 1}"
    return printable(listed([f"{number} = {name}" for number, name in enumerate(classes)]))


def _summary(packing: Packing, packed: Packed) -> str:
    if packed.manifest is None:
        others = f"{packed.waiting} jobs of other parts are not done yet: the last part to end makes the store"
        return f"part {packing.part} of {packing.parts} is done; {others if packed.waiting else 'another part has made the store'}"
    count, seconds = packed.manifest.num_records, packed.seconds
    resumed = f" ({packed.resumed} items had been finished before)" if packed.resumed else ""
    return (
        f"packed {count} records into {packing.path}: {packed.num_bytes:,} bytes, {seconds:.1f} s, "
        f"{count / seconds:,.0f} records/s, {len(packed.bad)} skipped{resumed}"
    )


@contextmanager
def progress_bar(name: str) -> Generator[Any, None, None]:
    """(console, function that takes a Progress); drawn on a terminal only, and gone at the end."""
    console = Console(stderr=True, highlight=False)
    columns: tuple[ProgressColumn | str, ...] = (
        TextColumn("{task.fields[phase]} {task.description}", markup=False),
        BarColumn(),
        TextColumn(
            "{task.completed}/{task.total}  {task.fields[rate]:,.0f} records/s  {task.fields[mb]:,.1f} MB"
        ),
        TimeRemainingColumn(),
    )
    bar = Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
    start: tuple[str, float, int] = ("", 0.0, 0)
    with bar:
        task = bar.add_task(name, total=None, mb=0.0, rate=0.0, phase="preparing")

        def tell(now: PackProgress) -> None:
            nonlocal start
            if now.phase != start[0]:
                start = (now.phase, time.monotonic(), now.records)
                bar.reset(task, total=now.num_items)
            rate = (now.records - start[2]) / max(1e-3, time.monotonic() - start[1])
            done = now.records if now.phase == "joining" else now.items
            bar.update(
                task,
                completed=done,
                total=now.num_items,
                mb=now.num_bytes / 1e6,
                rate=rate,
                phase=now.phase,
            )

        yield console, tell
