"""Open the directory of a run to use its model: to evaluate, to predict, to export it.

The configuration is the run's own, as it was resolved. The data that it was trained on need not
exist any more: ``run.json`` knows its fields and classes.
"""

import json
import os
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from framework.config.assemble import (
    find_device,
    make_augment,
    make_augmenter,
    open_source,
)
from framework.config.build import build, last_line
from framework.config.preflight import MISFITS
from framework.config.rule import check_values
from framework.config.schema import FACTS, RULES, RULES_BY_BLOCK
from framework.config.targets import (
    as_prefixes,
    check_targets,
    makes_data,
    with_folds,
    with_functions,
)
from framework.contracts.batch import Batch, move
from framework.contracts.data import Augment, Source
from framework.contracts.loader import Clock, Loader, LoaderContext
from framework.contracts.parallel import Parallel, Precision
from framework.contracts.records import Field, Manifest
from framework.contracts.training import Objective
from framework.data.classes import MappedSource, agree_on_classes
from framework.errors import CheckpointError, ConfigError
from framework.measure.clock import NoClock
from framework.measure.numa import stay_beside
from framework.store.file_format import format_of
from framework.system.malloc import keep_freed_memory
from framework.system.page_locked import use
from framework.system.rng import seed_generators
from framework.train.checkpoint import FOLDER, newest_state

Config = dict[str, Any]

RESOLVED = re.compile(r"resolved(\.\d+)?\.json")
BEST, LAST, AVERAGE = "best", "last", "average"
# The keys and parts of a configuration that use needs; training alone reads the others.
KEYS = (
    *("seed", "batch_size", "val_batch_size", "rank_batch_size", "accumulate", "shuffle", "last"),
    *("limit", "select", "fold", "folds", "channels_last", "compile", "device", "collate"),
    "verify",
)
PARTS = ("model", "objective", "transform", "augment", "precision", "parallel", "loader")
ALONE = {"_target_": "framework.parallel.none.NoParallel"}
OPENS_FILES = re.compile(r"framework\.data\.(hdf5|lmdb|folder|tar|parquet|mixture)\.\w+")
SOURCES = {
    name: {"_target_": f"framework.data.{name}.{name}_source"}
    for name in ("hdf5", "lmdb", "folder", "tar", "parquet")
}
_REFERENCE = re.compile(r"\$\{oc\.env:\s*([^,}\s]+)\}")


@final
class SavedRun:
    """A run whose model can be used. ``load`` and ``open_run`` make one.

    Parts are built when they are first used.

    Attributes:
        run_dir: The directory of the run.
        config: The configuration as plain values, without ``auto``.
        allowed: Prefixes of the user's packages, whose classes the configuration may name.
        weights: Which weights the model has: ``best``, ``last``, ``average``, or a file's path.
        train: What is known of the training data, such as its fields and classes.
        say: Prints a note.
    """

    def __init__(
        self,
        run_dir: Path,
        config: Config,
        allowed: Sequence[str],
        weights: str,
        train: Manifest,
        say: Callable[[str], None],
    ) -> None:
        self.run_dir = run_dir
        self.config = config
        self.allowed = tuple(allowed)
        self.weights = weights
        self.train = train
        self.say = say

    @property
    def classes(self) -> Sequence[str]:
        """The names of the classes, by number; empty if the training data names none."""
        return self.train.classes

    @cached_property
    def parallel(self) -> Parallel:
        """The ranks that share the work."""
        keep_freed_memory()
        seed_generators(self.config["seed"])
        device = find_device(self.config["device"])
        parallel: Parallel = build("parallel", self.config["parallel"], self.allowed, device=device)
        use(parallel.device, pinned=False)
        stay_beside(parallel.device)
        if parallel.device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        return parallel

    @property
    def device(self) -> torch.device:
        return self.parallel.device

    @cached_property
    def precision(self) -> Precision:
        precision: Precision = self.build("precision", device=self.device)
        return precision

    @cached_property
    def objective(self) -> Objective:
        objective: Objective = self.build("objective")
        return objective

    @cached_property
    def augment(self) -> Augment:
        return make_augment(self.config, self.allowed, self.train)

    @cached_property
    def model(self) -> nn.Module:
        """The model with the chosen weights, on the device and in evaluation mode.

        Raises:
            CheckpointError: K121 to K124 if the weights are missing, damaged, or do not fit.
        """
        parallel = self.parallel
        model: nn.Module = self.build("model").to(parallel.home)
        if self.config["channels_last"]:
            model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  # torch's stub lacks it
        self._load_weights(model)
        wrapped = parallel.wrap(model)
        if self.config["compile"]:
            wrapped.compile(dynamic=False)
        return parallel.unwrap(wrapped).eval()  # what training validates

    def _load_weights(self, model: nn.Module) -> None:
        where, state = read_chosen(self.run_dir, self.weights)
        try:
            model.load_state_dict(state)
        except MISFITS as error:
            what = f"does not fit the run's model ({last_line(error)})"
            fix = "give weights of this run, or of one with the same model"
            raise CheckpointError(122, where, what, fix) from error

    def build(self, name: str, **runtime: Any) -> Any:
        """Build the part that the block ``name`` of the configuration describes."""
        return build(name, self.config[name], self.allowed, **runtime)

    def source(self, path: Any = None) -> Source:
        """Open data as the run's validation data is opened. The caller closes it.

        Args:
            path: A store, or another path or object that ``data.val`` can be; None: the run's own
                validation data, cut as it was (``limit``, ``select``, ``fold``).

        Raises:
            ConfigError: C350 if the run has no validation data.
            DataError: D190 if the data has records of a class that the training data lacks.
        """
        config = self.config
        if path is None and config["data"].get("val") is None:
            fix = "give the path of a store: data.val=..."
            raise ConfigError(350, f"run = {self.run_dir}", "has no validation data", fix)
        if path is not None:
            config = _with_data(config, path)
        source = open_source("val", config, self.allowed, self.parallel)
        try:
            return self.with_own_classes(source)
        except BaseException:
            source.close()
            raise

    def with_own_classes(self, source: Source) -> Source:
        """Return ``source`` with labels numbered as the training data numbers them."""
        numbers = agree_on_classes(self.train, source.manifest)
        if numbers is None:
            return source
        return MappedSource(source, numbers, self.classes)

    def loader(self, source: Source, clock: Clock | None = None) -> Loader:
        """Return the run's loader over ``source``, which delivers batches as in validation.

        Closing the loader closes the source.
        """
        finish = make_augmenter(
            self.config, self.augment, self.device, training=False, say=self.say
        )
        context = LoaderContext(source, self.device, finish, clock or NoClock())
        loader: Loader = self.build("loader", context=context)
        return loader

    def batches(self, path: Any = None) -> Generator[Batch]:
        """Yield the batches of ``path`` as the model gets them in validation, on the device.

        ``path`` is what ``data.val`` can be, such as ``new.h5``; None: the run's own validation
        data. Every record comes once, in order. ``index`` holds the numbers of the records.
        """
        loader = self.loader(self.source(path))
        try:
            with closing(loader.epoch(0)) as micro_batches:
                for batch, weight, _ in micro_batches:
                    if weight > 0:
                        yield batch
        finally:
            loader.close()

    def prepared(self, batch: Batch) -> Batch:
        """Return a batch of host data as the model gets it: moved to the device and normalized."""
        finish = make_augmenter(
            self.config, self.augment, self.device, training=False, say=self.say
        )
        return finish(move(batch, self.device), 0)

    def close(self) -> None:
        """Leave the process group, if there is one."""
        if "parallel" in self.__dict__:
            self.parallel.close()


def load(
    run: str | os.PathLike[str],
    weights: str | os.PathLike[str] = BEST,
    *,
    device: str = "auto",
    allow_targets: Sequence[str] = (),
) -> SavedRun:
    """Open the directory of a run, in this process alone.

    Args:
        run: The directory, as ``paceline train`` printed it.
        weights: ``best`` (the last without validation), ``last``, ``average``, or a file.
        device: Where the model computes: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
        allow_targets: Packages of your own that the run's configuration may call.

    Raises:
        CheckpointError: K120 if there is no run.
        ConfigError: C105 for a class of a package that is not allowed.
    """
    changes: Config = {"parallel": ALONE, "device": device}
    return open_run(Path(run), as_prefixes(allow_targets), str(weights), changes)


def open_run(
    run_dir: Path,
    allowed: Sequence[str],
    weights: str = BEST,
    changes: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = print,
) -> SavedRun:
    """Open the directory of a run.

    Args:
        run_dir: The directory.
        allowed: Prefixes of the user's packages, whose classes the configuration may name.
        weights: ``best`` (the last without validation), ``last``, ``average``, or a file.
        changes: Keys and blocks of the configuration that replace the run's.
        say: Prints a note.

    Raises:
        CheckpointError: K120 if there is no run, or its files are damaged.
        ConfigError: C105 or C106 for a configuration that may not be called.
    """
    config, train = read_config(run_dir)
    config = with_folds(with_functions({**config, **(changes or {})}))
    check_targets({name: config[name] for name in (*PARTS, "data", "order")}, allowed)
    return SavedRun(run_dir, config, allowed, weights, train, say)


def read_config(run_dir: Path) -> tuple[Config, Manifest]:
    """Return the resolved configuration of a run, and what it knows of its training data.

    Nothing that the configuration names is imported. CheckpointError K120.
    """
    where = f"run = {run_dir}"
    fix = "give the directory that a run printed"
    try:
        paths = [path for path in run_dir.iterdir() if RESOLVED.fullmatch(path.name)]
        newest = max(paths, key=lambda path: (len(path.name), path.name), default=None)
        if newest is None:
            raise FileNotFoundError
        config = _resolved(json.loads(newest.read_text(encoding="utf-8")))
        facts = json.loads((run_dir / FACTS).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        what = f"not the directory of a run (no resolved.json and {FACTS})"
        raise CheckpointError(120, where, what, fix) from error
    except (OSError, ValueError, RecursionError) as error:
        what = f"its files cannot be read ({last_line(error)})"
        raise CheckpointError(120, where, what, fix) from error
    if not isinstance(facts, dict) or "data" not in facts:
        what = "the run never began: it has read no data"
        raise CheckpointError(120, where, what, "wait for it, or give the directory of another run")
    try:
        for name, value in facts.get("auto", {}).items():
            _put(config, name, value)
        _check(config)
        return config, _manifest(facts["data"]["train"])
    except ConfigError as error:
        what = f"its configuration cannot be used: {error}"
        raise CheckpointError(120, where, what, fix) from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        what = f"its configuration or its {FACTS} is damaged ({last_line(error)})"
        raise CheckpointError(120, where, what, fix) from error


def _resolved(node: Any) -> Any:
    """Return a copy with the values of the environment, which run directories only name."""
    if isinstance(node, dict):
        return {str(key): _resolved(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_resolved(value) for value in node]
    if isinstance(node, str):
        return _REFERENCE.sub(_from_environment, node)
    return node


def _from_environment(match: re.Match[str]) -> str:
    value = os.environ.get(match[1])
    if value is None:
        raise ValueError(f"the environment variable {match[1]} is not set")
    return value


def _put(config: Config, name: str, value: Any) -> None:
    """Set the value at a dotted name that holds ``auto``. A name without a place is left out."""
    *parents, key = name.split(".")
    block: Any = config
    for parent in parents:
        block = block[int(parent)] if isinstance(block, list) else block.get(parent)
    if isinstance(block, dict) and key in block:
        block[key] = value


def _check(config: Config) -> None:
    """Check what this module uses of a configuration, which a hostile file may hold."""
    check_values(config, {key: RULES[key] for key in KEYS})
    check_values(config["workers"], RULES_BY_BLOCK["workers"], "workers.")
    for name, block in [(name, config[name]) for name in PARTS] + [
        ("data.source", config["data"]["source"])
    ]:
        if not isinstance(block, dict) or not isinstance(block.get("_target_"), str):
            raise TypeError(f"{name} describes no part")
    if not isinstance(config["order"], dict):
        raise TypeError("order is no block")


def _manifest(block: Mapping[str, Any]) -> Manifest:
    known = {field.name for field in fields(Manifest)} - {"shards", "statistics", "fields"}
    described = {
        name: Field(field["dtype"], tuple(field["shape"]), field["encoding"], field["kind"])
        for name, field in block["fields"].items()
    }
    others = {name: value for name, value in block.items() if name in known}
    return Manifest(fields=described, **others)


def _with_data(config: Config, path: Any) -> Config:
    """Return the configuration with other validation data, all of whose records are used."""
    data = {**config["data"], "val": path}
    if isinstance(path, str) and not makes_data(data):
        data["source"] = _source_of(data["source"], path)
    return {
        **config,
        "data": data,
        "limit": None,
        "select": None,
        "fold": None,
        "folds": None,
    }


def _source_of(block: Config, path: str) -> Config:
    """Return the block of a source that reads ``path``: the run's own unless the format differs."""
    present = format_of(path)
    if present is None:
        is_folder = os.path.isdir(path) and "manifest.json" not in os.listdir(path)
        choice = "folder" if is_folder else None
    else:
        choice = present.choice
    opens = OPENS_FILES.fullmatch(block["_target_"])
    if choice is None or opens is None or opens[1] in (choice, "mixture"):
        return block
    return SOURCES[choice]


def read_chosen(run_dir: Path, weights: str) -> tuple[str, dict[str, Any]]:
    """Return how messages call the chosen weights, and the ``state_dict``.

    Raises:
        CheckpointError: K121 if the file is missing, K123 if it cannot be read, K124 if the run
            keeps no average.
    """
    where = f"weights = {weights}"
    folder = run_dir / FOLDER
    if weights == AVERAGE:
        state = newest_state(run_dir).state
        if not state.get("average"):
            what = f"{run_dir} keeps no average of the weights"
            raise CheckpointError(124, where, what, "train with ema_decay, or give weights=last")
        return where, state["average"]
    path = Path(weights)
    if weights in (BEST, LAST):
        path = folder / f"{weights}.pt"
        if weights == BEST and not path.exists():  # a run without validation has no best weights
            path = folder / "last.pt"
        where = f"weights = {path}"
    return where, _read_weights(path, where)


def _read_weights(path: Path, where: str) -> dict[str, Any]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        fix = "wait for the run's first save, or give weights=best, last, average or a file"
        raise CheckpointError(121, where, "no such file", fix) from error
    except Exception as error:  # a hostile pickle can raise anything
        what = f"not plain weights, or not torch's format ({type(error).__name__})"
        raise CheckpointError(123, where, what, "give a file of weights") from error
    if not isinstance(state, dict):
        raise CheckpointError(123, where, "holds no weights by name", "give a file of weights")
    if "model" in state and "progress" in state:  # a state to resume from
        return state["average"] or state["model"]
    return state
