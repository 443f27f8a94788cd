"""What packs a store: an input, a writer, and the keys of ``pack:``.

``prepare`` packs the stores that a training configuration describes and that do not exist yet.
"""

import os
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from framework.config import targets
from framework.config.build import build, maker
from framework.config.schema import check_known, check_values, option_rules
from framework.config.targets import Config, split_of, val_sets
from framework.contracts import records
from framework.contracts.records import Manifest, RecordInput
from framework.data.fields import agree_on_classes
from framework.errors import ConfigError, PacelineError, Say
from framework.media.header import MAX_PIXELS
from framework.pack.marked import MarkedInput
from framework.pack.packing import MakeWriter, Packing, SplitRule
from framework.pack.preparation import Preparation
from framework.store.hdf5_store import HDF5Writer
from framework.store.open_store import open_store
from framework.system.durable import locked

STORE_INPUT = "framework.input.store.StoreInput"  # its ``add`` names a function
OF_PACKING = ("on_error", "one_file", "part", "parts", "split", "split_by")  # others: Preparation


def default_options() -> Config:
    return yaml.safe_load((targets.CONF / "pack.yaml").read_text(encoding="utf-8"))["pack"]


def preparation_of(options: Config) -> Preparation:
    """Return what images become, from all keys of ``pack:``. ConfigError C101 or C102."""
    rules = option_rules("pack")
    own = {key.removeprefix("pack."): rules[key] for key in rules if key.startswith("pack.")}
    check_known(options, tuple(own), "pack")
    check_values(options, own, "pack.")
    return Preparation(**{key: options[key] for key in own if key not in OF_PACKING})


def packing_of(
    source: RecordInput, options: Config, make_writer: MakeWriter, path: str, configured: Config
) -> Packing:
    """Return the packing of ``source`` into ``path``.

    ``options`` are all keys of ``pack:``, and ``configured`` the blocks ``input`` and ``output``:
    finished jobs are kept only for the same. Jobs write the format of the output, or HDF5 if that
    is no format of stores. ConfigError C101, C102, or C247 for a rule of splits without splits.
    """
    prepare = preparation_of(options)
    run = {key: options[key] for key in OF_PACKING}
    shares, by = run.pop("split"), run.pop("split_by")
    if shares is not None:
        run["split"] = SplitRule({str(name): share for name, share in shares.items()}, by)
    elif by is not None:
        fix = "add 'pack.split={train: 0.9, val: 0.1}'"
        raise ConfigError(247, f"pack.split_by = {by}", "there is no split", fix)
    output = {key: value for key, value in configured["output"].items() if key != "path"}
    run["configured"] = {"input": configured["input"], "output": output}
    run["suffix"] = targets.SUFFIXES.get(output["_target_"])
    if run["suffix"] is None:
        run |= {"suffix": ".h5", "make_part": HDF5Writer}
    return Packing(source, make_writer, path, prepare, **run)


def input_of(where: str, block: Config, options: Config, allowed: Sequence[str]) -> MarkedInput:
    """Return the input that ``block`` describes, with its label maps marked.

    ``options`` are the keys of ``pack:``.
    """
    own = targets.parameters_of(block.get("_target_"))  # MNIST's input has a file called labels
    marks = {key: block[key] for key in targets.MARK_KEYS if key in block and key not in own}
    plain = {key: value for key, value in block.items() if key not in marks}
    if plain.get("_target_") == STORE_INPUT and isinstance(plain.get("add"), str):
        plain["add"] = {"_target_": plain["add"], "_partial_": True}
    source: RecordInput = build(where, plain, allowed)
    if isinstance(source, records.InputTraits):
        source.skip_bad = options.get("on_error") == "skip"
    most = options.get("max_pixels")
    if not isinstance(most, int):
        most = MAX_PIXELS
    return MarkedInput(source, marks.get("labels"), marks.get("values"), most, marks.get("kinds"))


def writer_of(where: str, block: Config, allowed: Sequence[str]) -> MakeWriter:
    own = {key: block[key] for key in block if key != "path"}
    return maker(where, own, allowed, path="", fields={}, num_records=0)


def prepare(
    config: Config, allowed: Sequence[str], pack_one: Callable[[Packing], object], tell: Say
) -> None:
    """Pack with ``pack_one`` what ``config['prepare']`` describes, if its store is missing.

    ``prepare.SPLIT`` has ``input``, and ``pack`` for changes. With several validation sets,
    ``prepare.val`` has such a block for each name. Only stores inside ``dataset`` are packed: a
    missing store elsewhere is a mistake in its name. If several jobs want the same store, one packs
    it and the others wait. ``tell`` prints notes.

    Raises:
        ConfigError: C153 for another key, C248 for ``pack.split``, C339 for a set without a path.
        DataError: D190 if validation has a class that training lacks.
    """
    data, dataset = config["data"], config["dataset"]
    if data.get("writer") is None or dataset is None:
        return
    missing: dict[str, MarkedInput] = {}
    manifests: dict[str, Manifest] = {}
    described = {split: (path, block) for split, path, block in _described(config)}
    for split, (path, block) in described.items():
        is_ours = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(dataset))
        if Path(path).exists() or not is_ours:
            continue
        given = block.get("input") if isinstance(block, dict) else None
        if not isinstance(given, dict) or not set(block) <= {"input", "pack"}:
            what = "must hold the keys input and pack"
            fix = "give {input: {...}, pack: {...}}"
            raise ConfigError(153, f"prepare.{split} = {block}"[:200], what, fix)
        options = block.get("pack") or {}
        if options.get("split") is not None:
            what = "is not possible here, because each split has an input of its own"
            fix = "pack with 'paceline pack pack.split=...', and give data.train and data.val"
            raise ConfigError(248, f"prepare.{split}.pack.split", what, fix)
        with _in_errors(split):
            missing[split] = input_of(f"prepare.{split}.input", given, options, allowed)
            manifests[split] = missing[split].manifest
    _check_classes(data, manifests)
    writer = writer_of("data.writer", data["writer"], allowed)
    for split, source in missing.items():
        path, block = described[split]

        def waits(holder: str, path: str = path) -> None:
            tell(f"{holder} is packing {path}; waiting for it")

        lock = locked(Path(f"{path}.prepare.lock"), waits, needed=False)
        with lock, _in_errors(split):
            if not Path(path).exists():
                for note in records.notes_of(source):
                    tell(_as_in_training(split, note))
                options = {**default_options(), **(block.get("pack") or {})}
                of_pack = {"input": block["input"], "output": data["writer"]}
                pack_one(packing_of(source, options, writer, path, of_pack))


def _described(config: Config) -> Iterator[tuple[str, str, Any]]:
    """Yield the split, the path and the block of ``prepare`` of each store that has all of them."""
    sets = val_sets(config["data"])
    blocks = dict(config["prepare"] or {})
    val = blocks.get("val")
    # a recipe's ``val.input`` is for the single set that was replaced
    if isinstance(val, dict) and sets and "" not in sets:
        del blocks["val"]
        if "input" in val:
            val = {}
        for name, block in val.items():
            if name not in sets:
                what = f"data.val has no set of this name, only {', '.join(sets)}"
                raise ConfigError(339, f"prepare.val.{name}", what, "correct the name")
            blocks[split_of(name)] = block
    paths = {split_of(name): given for name, given in sets.items()}
    tests = val_sets(config["data"], "test")
    paths |= {split_of(name, "test"): given for name, given in tests.items()}
    paths["train"] = config["data"].get("train")
    for split, block in blocks.items():
        path = paths.get(split)  # an object of the user's is no store
        if block is not None and isinstance(path, str):
            yield split, path, block


def _check_classes(data: Config, manifests: dict[str, Manifest]) -> None:
    """Check, before anything is packed, that validation has no class that training lacks. D190."""
    if not manifests:
        return
    paths: Config = {}
    for key in ("val", "test"):
        paths |= {split_of(name, key): given for name, given in val_sets(data, key).items()}
    for split, path in {"train": data.get("train"), **paths}.items():
        if split not in manifests and isinstance(path, str) and Path(path).exists():
            # the run that reads it says what is wrong with it
            with suppress(PacelineError), closing(open_store(path)) as store:
                manifests[split] = store.manifest
    for split in paths:
        if split in manifests and "train" in manifests:
            agree_on_classes(manifests["train"], manifests[split], where=f"data.{split}")


def packed_from_others(config: Config) -> Iterator[tuple[str, str]]:
    """Yield existing stores that were packed from another path than ``config['prepare']`` names.

    Each comes as its path, and what its manifest says it was packed from.
    """
    for _, path, block in _described(config):
        given = block.get("input") if isinstance(block, dict) else None
        packed_from = given.get("path") if isinstance(given, dict) else None
        if not isinstance(packed_from, str):
            continue
        try:
            source = open_store(path).manifest.source
        except PacelineError:  # missing, a folder of files, or damaged: its reader says so
            continue
        # a manifest's source reads like ``folder a/b (2 links left out)``
        name = re.escape(os.path.normpath(packed_from))
        if not re.search(rf"(?:^|[ ,]){name}/?(?:$|[ ,])", re.sub(r"/+", "/", source)):
            yield path, source


def _as_in_training(split: str, text: str) -> str:
    """Return a text that names keys of packing with the keys of training, ``prepare.SPLIT...``."""
    if "paceline pack" in text:  # the text has a whole command
        return text
    text = text.replace("output.path", "dataset").replace("output=", "data=")
    # names of keys have no digits: pack.h5 is a file
    text = re.sub(r"(?<![\w./])((?:input|pack)\.[a-z_]+)\b", rf"prepare.{split}.\1", text)
    # a word that can be typed whether the recipe has the key or not
    return re.sub(rf"\b(prepare\.{split}\.\w+\.\w+=)", r"++\1", text)


@contextmanager
def _in_errors(split: str) -> Generator[None]:
    try:
        yield
    except PacelineError as error:
        number, *parts = error.args
        error.args = (number, *(_as_in_training(split, part) for part in parts))
        raise
