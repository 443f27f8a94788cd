"""Stores that a configuration describes and that are not there yet: packed before a run begins."""

import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from framework.config.build import build
from framework.config.signature import static_signature
from framework.config.targets import MARK_KEYS, Config
from framework.contracts.records import Field, Manifest, RecordInput, RecordWriter
from framework.data.classes import agree_on_classes
from framework.errors import ConfigError, PacelineError
from framework.pack.engine.jobs import MakeWriter
from framework.pack.marked import MarkedInput, marked
from framework.store.open_store import open_store
from framework.system.lock import locked
from framework.system.stopping import undone

PackOne = Callable[
    [RecordInput, Config, MakeWriter, str, str], object
]  # (input, keys of pack:, writer, path, the writer's name)


def prepare(
    config: Config, allowed: Sequence[str], pack_one: PackOne, tell: Callable[[str], None]
) -> None:
    """Pack what ``config['prepare']`` describes for each split (``input``, and what ``pack`` changes) whose store is missing, with the
    data choice's own writer. Only inside ``dataset``: a store that is named elsewhere, and is not there, is a mistake in its name. Of jobs
    side by side that want the same store one packs; the others ``tell`` that they wait for it, and do. ConfigError C153 for another key.
    """
    data, missing = config["data"], dict[str, RecordInput]()
    for split, block in (config["prepare"] or {}).items():
        path = data.get(split)
        if block is None or path is None or data.get("writer") is None or Path(path).exists():
            continue
        if config["dataset"] is None or not Path(path).is_relative_to(config["dataset"]):
            continue
        if (
            not isinstance(block, dict)
            or not isinstance(block.get("input"), dict)
            or not set(block) <= {"input", "pack"}
        ):
            raise ConfigError(
                153,
                f"prepare.{split} = {block}"[:200],
                "not what is packed",
                "give {input: {...}, pack: {...}}",
            )
        missing[split] = input_of(
            f"prepare.{split}.input", block["input"], block.get("pack") or {}, allowed
        )
    _check_classes(data, missing)
    for split, source in missing.items():
        path, options = data[split], config["prepare"][split].get("pack") or {}
        writer = writer_of("data.writer", data["writer"], allowed)
        with (
            _left_as_it_was(Path(path).parent),
            locked(Path(f"{path}.prepare.lock"), partial(_wait, tell, path), needed=False),
        ):
            if not Path(path).exists():
                pack_one(source, options, writer, path, data["writer"]["_target_"])


def _check_classes(data: Config, missing: Mapping[str, RecordInput]) -> None:
    """Check, before anything is packed, that validation has no class that training lacks. DataError D190.

    A store that cannot be opened is left to the run that reads it.
    """
    if not missing or not {"train", "val"} <= {split for split in data if data[split] is not None}:
        return
    manifests: list[Manifest] = []
    for split in ("train", "val"):
        if split in missing:
            manifests.append(missing[split].manifest)
            continue
        try:
            store = open_store(data[split])
            manifests.append(store.manifest)
            store.close()
        except PacelineError:
            return
    agree_on_classes(*manifests)


@contextmanager
def _left_as_it_was(folder: Path) -> Generator[None]:
    """A folder that was not there is not there either where nothing came into it."""
    was_there = folder.exists()

    def remove() -> None:
        if not was_there:
            with suppress(OSError):
                folder.rmdir()

    try:
        with undone(lambda _: remove()):
            yield
    finally:
        remove()


def input_of(where: str, block: Config, options: Config, allowed: Sequence[str]) -> MarkedInput:
    """Return the input that ``block`` describes, with its label maps marked. ``options``: the keys of ``pack:``."""
    signature = static_signature(str(block.get("_target_")))
    own = signature.names if signature is not None else ()  # MNIST's input has a file called labels
    marks = {key: block[key] for key in MARK_KEYS if key in block and key not in own}
    plain = {key: value for key, value in block.items() if key not in marks}
    return marked(build(where, plain, allowed), marks, options.get("max_pixels"))


def packed_from_others(config: Config) -> Iterator[tuple[str, str]]:
    """(path, what it says it was packed from) of stores that are there and do not name the path that ``config['prepare']`` would pack."""
    for split, block in (config["prepare"] or {}).items():
        path, given = (
            config["data"].get(split),
            block.get("input") if isinstance(block, dict) else None,
        )
        if (
            not isinstance(given, dict)
            or not isinstance(given.get("path"), str)
            or not isinstance(path, str)
        ):
            continue
        try:
            source = open_store(path).manifest.source
        except PacelineError:  # not there, a folder of files, or no good: who reads it says so
            continue
        if not _names(source, os.path.normpath(given["path"])):
            yield path, source


def _names(source: str, path: str) -> bool:
    """Whether a manifest's ``source``, as in ``folder a/b (2 links left out)``, has ``path`` as a word."""
    words = re.sub(r"/+", "/", source)
    return re.search(rf"(?:^|[ ,]){re.escape(path)}/?(?:$|[ ,])", words) is not None


def _wait(tell: Callable[[str], None], path: str, holder: str) -> None:
    tell(f"{holder} is packing {path}; waiting for it")


def writer_of(where: str, block: Config, allowed: Sequence[str]) -> MakeWriter:
    """The writer that ``block`` describes, to be made for any path; picklable."""
    return partial(_make_writer, where, block, tuple(allowed))


def _make_writer(
    where: str,
    block: Config,
    allowed: Sequence[str],
    path: str,
    *,
    fields: Mapping[str, Field],
    num_records: int,
) -> RecordWriter:
    return build(where, {**block, "path": path}, allowed, fields=fields, num_records=num_records)
