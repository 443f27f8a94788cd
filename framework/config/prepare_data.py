"""Pack the stores that a configuration describes and that do not exist yet, before a run begins."""

import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, final

from framework.config.build import build, deferred
from framework.config.pack_options import default_options, for_output, packing_of
from framework.config.signature import static_signature
from framework.config.targets import MARK_KEYS, Config, split_of, val_sets, with_added
from framework.contracts.records import (
    ChecksItems,
    Field,
    Manifest,
    RecordInput,
    RecordWriter,
    notes_of,
)
from framework.data.classes import agree_on_classes
from framework.errors import ConfigError, PacelineError
from framework.pack.images import Preparation
from framework.pack.marked import MarkedInput, marked
from framework.pack.packing import MakeWriter, Packing
from framework.store.open_store import open_store
from framework.system.lock import locked
from framework.system.stopping import undone

PACK_KEYS = [option.name for kind in (Preparation, Packing) for option in fields(kind)]


def prepare(
    config: Config,
    allowed: Sequence[str],
    pack_one: Callable[[Packing], object],
    tell: Callable[[str], None],
) -> None:
    """Pack what ``config['prepare']`` describes for each split whose store is missing.

    Only stores inside ``dataset`` are packed: a missing store elsewhere is a mistake in its name.
    If several jobs want the same store, one packs it and the others wait.

    Args:
        config: Plain values. ``prepare.SPLIT`` has ``input``, and ``pack`` for changes. With
            several validation sets, ``prepare.val`` has such a block for each name.
        allowed: Prefixes of the user's packages.
        pack_one: Packs one store.
        tell: Prints a note: of an input, or that this job waits.

    Raises:
        ConfigError: C153 for another key, C248 for ``pack.split``, C339 for a set without a path.
        DataError: D190 if validation has a class that training lacks.
    """
    data = config["data"]
    paths = paths_of_splits(data)
    blocks = _blocks(config)
    missing = {
        split: _input_of_split(split, block, allowed)
        for split, block in blocks.items()
        if block is not None and _is_missing(config, paths.get(split))
    }
    words = {split: PrepareWords(split, blocks[split]["input"]) for split in missing}
    for split in paths:
        if split != "train":
            _check_classes(paths, split, missing, words)
    for split, source in missing.items():
        path = paths[split]
        block = blocks[split]
        options = {**default_options(), **(block.get("pack") or {})}
        writer = writer_of("data.writer", data["writer"], allowed)
        lock = locked(Path(f"{path}.prepare.lock"), partial(_wait, tell, path), needed=False)
        with _left_as_it_was(Path(path).parent), lock, words[split].in_errors():
            if not Path(path).exists():
                for note in notes_of(source):
                    tell(words[split](note))
                packing = packing_of(source, options, writer, path)
                pack_one(for_output(packing, block["input"], data["writer"]))


def paths_of_splits(data: Config) -> dict[str, Any]:
    """Return what ``data`` gives for ``train``, ``val``, or each of several ``val.NAME``."""
    val = {split_of(name): given for name, given in val_sets(data).items()}
    return {"train": data.get("train"), **val}


def _blocks(config: Config) -> Config:
    """Return the blocks of ``prepare`` by split.

    ConfigError C339 for a validation set that ``data.val`` does not name.
    """
    blocks = dict(config["prepare"] or {})
    sets = val_sets(config["data"])
    val = blocks.get("val")
    if not isinstance(val, dict) or "" in sets or not sets:
        return blocks
    del blocks["val"]
    if "input" in val:  # a recipe's, for the single set that was replaced
        return blocks
    for name, block in val.items():
        if name not in sets:
            what = f"data.val has no set of this name, only {', '.join(sets)}"
            raise ConfigError(339, f"prepare.val.{name}", what, "correct the name")
        blocks[split_of(name)] = block
    return blocks


def _is_missing(config: Config, path: Any) -> bool:
    """Return whether a store has to be packed: one inside ``dataset`` that does not exist.

    An object of the user's is no store.
    """
    if (
        not isinstance(path, str)
        or config["data"].get("writer") is None
        or config["dataset"] is None
    ):
        return False
    folder = os.path.abspath(config["dataset"])
    return Path(os.path.abspath(path)).is_relative_to(folder) and not Path(path).exists()


def _input_of_split(split: str, block: Any, allowed: Sequence[str]) -> MarkedInput:
    given = block.get("input") if isinstance(block, dict) else None
    if not isinstance(given, dict) or not set(block) <= {"input", "pack"}:
        place = f"prepare.{split} = {block}"[:200]
        what = "must hold the keys input and pack"
        raise ConfigError(153, place, what, "give {input: {...}, pack: {...}}")
    options = block.get("pack") or {}
    if options.get("split") is not None:
        what = "is not possible here, because each split has an input of its own"
        fix = "pack with 'paceline pack pack.split=...', and give data.train and data.val"
        raise ConfigError(248, f"prepare.{split}.pack.split", what, fix)
    with PrepareWords(split, given).in_errors():
        return input_of(f"prepare.{split}.input", given, options, allowed)


def _check_classes(
    paths: Config,
    val: str,
    missing: Mapping[str, RecordInput],
    words: Mapping[str, "PrepareWords"],
) -> None:
    """Check, before anything is packed, that the split ``val`` has no class that training lacks.

    DataError D190. A store that cannot be opened is left to the run that reads it.
    """
    splits = ("train", val)
    if not missing or not all(isinstance(paths[split], str) for split in splits):
        return
    manifests: list[Manifest] = []
    for split in splits:
        if split in missing:
            with words[split].in_errors():
                manifests.append(missing[split].manifest)
            continue
        try:
            with closing(open_store(paths[split])) as store:
                manifests.append(store.manifest)
        except PacelineError:
            return
    agree_on_classes(*manifests, where=f"data.{val}")


@contextmanager
def _left_as_it_was(folder: Path) -> Generator[None]:
    """Remove a folder at the end if it did not exist before and is still empty."""
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
    """Return the input that ``block`` describes, with its label maps marked.

    ``where`` names the block in messages, and ``options`` are the keys of ``pack:``.
    """
    signature = static_signature(str(block.get("_target_")))
    marks = {key: block[key] for key in MARK_KEYS if key in block}
    if signature is not None:  # MNIST's input has a file called labels
        marks = {key: value for key, value in marks.items() if key not in signature.names}
    plain = {key: value for key, value in block.items() if key not in marks}
    source: RecordInput = build(where, with_added(plain), allowed)
    if isinstance(source, ChecksItems):
        source.skip_bad = options.get("on_error") == "skip"
    return marked(source, marks, options.get("max_pixels"))


def packed_from_others(config: Config) -> Iterator[tuple[str, str]]:
    """Yield existing stores that were packed from another path than ``config['prepare']`` names.

    Each comes as its path, and what its manifest says it was packed from.
    """
    paths = paths_of_splits(config["data"])
    for split, block in _blocks(config).items():
        path = paths.get(split)
        given = block.get("input") if isinstance(block, dict) else None
        packed_from = given.get("path") if isinstance(given, dict) else None
        if not isinstance(packed_from, str) or not isinstance(path, str):
            continue
        try:
            source = open_store(path).manifest.source
        except PacelineError:  # missing, a folder of files, or damaged: its reader says so
            continue
        if not _names(source, os.path.normpath(packed_from)):
            yield path, source


def _names(source: str, path: str) -> bool:
    """Return whether a manifest's source, such as ``folder a/b (2 links left out)``, names
    ``path``.
    """
    words = re.sub(r"/+", "/", source)
    return re.search(rf"(?:^|[ ,]){re.escape(path)}/?(?:$|[ ,])", words) is not None


def _wait(tell: Callable[[str], None], path: str, holder: str) -> None:
    tell(f"{holder} is packing {path}; waiting for it")


def writer_of(where: str, block: Config, allowed: Sequence[str]) -> MakeWriter:
    """Return a function that makes the writer of ``block`` for any path."""
    make = deferred(where, {key: block[key] for key in block if key != "path"}, allowed)

    def make_writer(path: str, *, fields: Mapping[str, Field], num_records: int) -> RecordWriter:
        return make(path=path, fields=fields, num_records=num_records)

    return make_writer


@final
class PrepareWords:
    """Replaces ``input.KEY`` by ``prepare.SPLIT.input.KEY``, and ``pack.KEY`` likewise.

    ``KEY=value`` becomes a word that can be typed whether the recipe has the key or not.

    Args:
        split: The split that is packed.
        source: The keys of its input.
    """

    def __init__(self, split: str, source: Mapping[str, Any]) -> None:
        signature = static_signature(str(source.get("_target_")))
        names = {*MARK_KEYS, *map(str, source)}
        if signature is not None:
            names.update(signature.names)
        # Only the names of keys: pack.h5 is a file.
        keys = [f"input.{name}" for name in names] + [f"pack.{name}" for name in PACK_KEYS]
        self._keys = re.compile(rf"(?<![\w./])({'|'.join(map(re.escape, keys))})\b(=?)")
        self._prefix = f"prepare.{split}."

    def __call__(self, text: str) -> str:
        if "paceline pack" in text:  # the text has a whole command
            return text
        text = text.replace("output.path", "dataset").replace("output=", "data=")
        return self._keys.sub(self._of_training, text)

    def _of_training(self, match: re.Match[str]) -> str:
        key, equals = match.groups()
        sign = "++" if equals else ""
        return f"{sign}{self._prefix}{key}{equals}"

    @contextmanager
    def in_errors(self) -> Generator[None]:
        """Replace the keys in an error of the block."""
        try:
            yield
        except PacelineError as error:
            number, *parts = error.args
            error.args = (number, *map(self, parts))
            raise
