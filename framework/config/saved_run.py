"""Open the directory of a run to use its model: to evaluate, to predict, to export it.

The data that it was trained on need not exist: ``run.json`` knows its fields and classes.
"""

import os
import re
from collections.abc import Container, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from framework.augment.compose import Finish, finish_with, flat_parts
from framework.config import assemble, targets
from framework.config import input_source as inputs
from framework.config.build import MISFITS, build, compile_model
from framework.config.resume import USED_PARTS, SavedConfig, read_config
from framework.config.targets import Config
from framework.contracts.batch import Batch
from framework.contracts.data import Augment, Source, SourceContext, traits_of
from framework.contracts.loader import Clock, Loader, LoaderContext
from framework.contracts.parallel import Parallel, Precision
from framework.contracts.prediction import PredictedBoxes, PredictedMaps, Predictions, Predicts
from framework.contracts.records import CARRIED, Field, Manifest, RecordInput
from framework.contracts.training import Objective
from framework.data.fields import length_name, with_agreed_classes
from framework.data.reader import BatchReader
from framework.data.source import StoreSource
from framework.errors import CheckpointError, ConfigError, Say, listed, say, words_of
from framework.measure.clock import NoClock
from framework.store.foreign import format_of
from framework.system import memory, rng
from framework.train.checkpoint import FOLDER, OF_OBJECTIVE, newest_path, newest_state
from framework.train.objective_state import ObjectiveState
from framework.train.weights import read_dict, read_weights, weights_path
from framework.transform.resize import Resize

BEST, LAST, AVERAGE = "best", "last", "average"
NOTHING = {"_target_": "framework.augment.none.NoAugment"}
ALONE = {"_target_": "framework.parallel.none.NoParallel"}
OPENS_FILES = re.compile(r"framework\.data\.(hdf5|lmdb|folder|tar|parquet|mixture)\.\w+")
Size = tuple[int, int]


class ValidationSet(NamedTuple):
    split: str  # ``val``, or ``val.NAME`` of several
    given: Any  # what names the data, as ``data.val`` does
    config: Config  # with which it is read
    own: bool  # whether the run has validated on it


class Inferred(NamedTuple):
    batch: Batch  # as the model got it
    part: inputs.ReadPart  # of the input
    predictions: Predictions
    places: list[inputs.ImagePlace] | None  # where the model has looked, for maps and boxes


@final
@dataclass(eq=False, repr=False)
class SavedRun:
    """A run whose model can be used, as ``load`` and ``open_run`` return it.

    Parts are built when they are first used. ``train`` describes the training data, ``classes`` are
    the names of its classes by number, if it has any.
    """

    run_dir: Path
    config: Config
    allowed: Sequence[str]
    weights: str
    _saved: SavedConfig
    say: Say

    def __post_init__(self) -> None:
        self.train: Manifest = self._saved.train
        self.classes: Sequence[str] = self.train.classes

    @cached_property
    def parallel(self) -> Parallel:
        memory.keep_freed_memory()
        deterministic = self.config["deterministic"] or rng.is_deterministic()
        return assemble.open_ranks({**self.config, "deterministic": deterministic}, self.allowed)

    @property
    def device(self) -> torch.device:
        return self.parallel.device

    @cached_property
    def precision(self) -> Precision:
        return self.build("precision", device=self.device)

    @cached_property
    def objective(self) -> Objective:
        """The objective with what it owned when the chosen weights were saved. K122."""
        objective: Objective = self.build("objective")
        owned = ObjectiveState(objective, self.parallel)
        if self.weights == AVERAGE:
            state = newest_state(self.run_dir).state.get("objective", {})
        else:
            path = chosen_file(self.run_dir, self.weights)
            path = path.with_name(path.stem + OF_OBJECTIVE)
            state = read_dict(path) if path.exists() else {}
        self._load("objective", owned, state)
        for module in owned.modules.values():
            module.eval()
        return objective

    @cached_property
    def augment(self) -> Augment:
        return assemble.make_augment(self.config, self.allowed, self.train)

    @cached_property
    def finish(self) -> Finish:
        """Normalizes a batch on the device, as in validation. The second argument is 0."""
        return finish_with(self.augment, self.config["seed"], False, False, self.say)

    @cached_property
    def model(self) -> nn.Module:
        """The model with the chosen weights, on the device and in evaluation mode.

        CheckpointError K121, K122, K124 or as ``read_weights`` for weights that do not fit.
        """
        parallel = self.parallel
        model: nn.Module = self.build("model").to(parallel.home)
        if self.config["channels_last"]:
            model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  # torch's stub lacks it
        path = chosen_file(self.run_dir, self.weights)
        if self.weights == AVERAGE:
            state = newest_state(self.run_dir).state.get("average")
            if not isinstance(state, dict):
                what = f"{self.run_dir} keeps no average of the weights"
                fix = "train with ema_decay, or give weights=last"
                raise CheckpointError(124, f"weights = {self.weights}", what, fix)
        else:
            state = read_weights(path, names=model.state_dict().keys())
        self._load("model", model, state)
        wrapped = parallel.wrap(model)
        if self.config["compile"]:
            compile_model(wrapped, self.config["compile"])
        return parallel.unwrap(wrapped).eval()  # what training validates

    def _load(self, name: str, part: nn.Module | ObjectiveState, state: Config) -> None:
        try:
            part.load_state_dict(state)
        except MISFITS as error:
            where = f"weights = {chosen_file(self.run_dir, self.weights)}"
            what = f"does not fit the run's {name} ({words_of(error)})"
            fix = f"give weights of this run, or of one with the same {name}"
            raise CheckpointError(122, where, what, fix) from error

    def build(self, name: str, **runtime: Any) -> Any:
        return build(name, self.config[name], self.allowed, **runtime)

    def sets(
        self, given: Any = None, select: str | None = None, limit: int | None = None
    ) -> dict[str, ValidationSet]:
        """Return each validation set by its split.

        ``given`` is what ``data.val`` can be, cut by ``select`` and ``limit``; None: the run's own
        validation data, cut as it was. ConfigError C350 if there is none.
        """
        config, own = self.config, given is None
        data = config["data"] if own else {**config["data"], "val": given}
        sets: dict[str, ValidationSet] = {}
        for name, part in targets.val_sets(data).items():
            split = targets.split_of(name)
            if not own:
                source = {**self.config["data"], "source": _source_of(data, part)}
                cut = {"select": select, "limit": limit, **targets.UNFOLDED}
                config = {**self.config, **cut, "data": source}
            sets[split] = ValidationSet(split, part, config, own)
        if not sets:
            fix = "give the path of a store: data.val=..."
            raise ConfigError(350, f"run = {self.run_dir}", "has no validation data", fix)
        return sets

    def open_set(self, part: ValidationSet) -> Source:
        """Open a validation set. Other data than the run's own is prepared like that of training.

        The caller closes it. CheckpointError K125 if the run's own validation data has changed,
        ConfigError C352 for other numbers as pixels, DataError D190 for an unknown class.
        """
        split, given, config, own = part
        where = f"data.{split} = {targets.data_name(given)}"
        source = assemble.open_source(split, given, config, self.allowed, self.parallel)
        try:
            digest, known = source.manifest.digest, self._saved.digests.get(split)
            if own and self._saved.folder:
                what = "is that of the folder in which the run was started, which differs from this"
                self.say(f"note: {where}: {what} one")
            if own and digest and known and digest != known and self.config["folds"] is None:
                what = "is other data than the run has validated on (its digest differs)"
                fix = "bring that data back, or name this in the command: data.val=PATH"
                raise CheckpointError(125, where, what, fix)
            if given in targets.val_sets(self.config["data"]).values():
                return with_agreed_classes(self.train, source)
            if isinstance(source, StoreSource):
                store = inputs.PreparedStore(source.store, self.train)
                context = self._scaling(store.manifest.fields, source.context)
                if store.changes or context is not source.context:
                    source = StoreSource(store, context, source.close)
            elif size := self._scaled_to(source.manifest.fields):
                height, width = size
                what = f"images are not {height} x {width}, as those of training"
                fix = f"pack them with pack.size=[{height},{width}]"
                self.say(f"note: {source.manifest.source or 'the data'}: {what}; {fix}")
            self._check_pixels(where, self._inputs_of(source.manifest.fields))
            return with_agreed_classes(self.train, source)
        except BaseException:
            source.close()
            raise

    def source(self, path: Any = None) -> Source:
        """Open what ``data.val`` can be, None: the run's own first set. The caller closes it."""
        return self.open_set(next(iter(self.sets(path).values())))

    def loader(
        self, source: Source, clock: Clock | None = None, finish: Finish | None = None
    ) -> Loader:
        """Return the run's loader over ``source``. Closing it closes the source.

        ``clock`` measures the batches, and ``finish`` normalizes them; None: as in validation.
        """
        context = LoaderContext(source, self.device, finish or self.finish, clock or NoClock())
        return self.build("loader", context=context)

    def batches(self, path: Any = None) -> Generator[Batch]:
        """Yield the batches of ``path`` as the model gets them in validation, on the device.

        ``path`` is what ``data.val`` can be, such as ``new.h5``; None: the run's own validation
        data. Every record comes once, in order. ``index`` holds the numbers of the records.
        """
        loader = self.loader(self.source(path))
        with closing(loader), closing(loader.epoch(0)) as micro_batches:
            for batch, weight, _ in micro_batches:
                if weight > 0:
                    yield batch

    @property
    def predicts(self) -> Predicts:
        """The objective, which knows what its model predicts. ConfigError C351 if it does not."""
        if not isinstance(self.objective, Predicts):
            name = self.config["objective"]["_target_"]
            what = "does not say what its model predicts"
            fix = "give it inputs, target and predict, as framework.contracts.prediction has them"
            raise ConfigError(351, f"objective = {name}", what, fix)
        return self.objective

    def _scaled_to(self, fields: Mapping[str, Field]) -> Size | None:
        """Return the size of images in training, if others must be scaled to it as packing did."""
        transform = self._context.transform
        scaled = any(self.train.options.get(key) for key in ("size", "resize", "max_side"))
        if transform.size is not None or transform.function is not None or not scaled:
            return None
        for name, field in fields.items():
            size = _image_size(self.train.fields.get(name))
            if size is not None and _image_size(field) != size and field.channels is not None:
                return size
        return None

    def _scaling(self, fields: Mapping[str, Field], context: SourceContext) -> SourceContext:
        if size := self._scaled_to(fields):
            shape = f"{size[0]} x {size[1]}"
            self.say(f"note: images are cut and scaled to {shape}, as packing did for training")
            context = replace(context, transform=Resize(size, crop=True, antialias=True))
        return context

    @property
    def batch_size(self) -> int:
        return self._context.order(1).batch_size

    @cached_property
    def _context(self) -> SourceContext:
        config = {**self.config, "limit": None, "select": None, **targets.UNFOLDED}
        return assemble.source_context(config, self.allowed, self.parallel, training=False)

    def prepared(self, given: RecordInput) -> RecordInput:
        # maps and boxes lie in the pixels of the given images
        target = self.train.fields.get(self.predicts.target)
        scales = target is None or target.kind not in ("labels", "boxes")
        prepare = inputs.preparation(given.manifest, self.train, scales)
        return given if prepare is None else inputs.PreparedInput(given, prepare)

    def input_source(
        self,
        given: RecordInput,
        ranges: Sequence[inputs.ItemRange] | None = None,
        more: Mapping[str, Field] | None = None,
        skip_bad: bool = False,
    ) -> inputs.InputSource:
        """Return a source of what the model takes from an input of ``prepared``, for ``inferred``.

        Without ``ranges`` everything is one part. ``more`` are other fields of its batches.
        """
        fields = self.input_fields(given.manifest)
        context = self._scaling(fields, self._context)
        ranges = ranges or [inputs.ItemRange(0, 0, given.manifest.num_records)]
        return inputs.InputSource(given, {**fields, **(more or {})}, ranges, context, skip_bad)

    def inferred(self, source: inputs.InputSource) -> Generator[Inferred]:
        name = self.predicts.inputs[0]
        # augments of what the model does not take are left out
        taken = self._inputs_of(source.manifest.fields)
        config = {**self.config, "augment": only_fields(self.config["augment"], taken) or NOTHING}
        manifest = replace(self.train, fields=dict(taken))
        augment = assemble.make_augment(config, self.allowed, manifest)
        finish = finish_with(augment, self.config["seed"], False, False, self.say)
        loader = self.loader(source, finish=finish)
        with closing(loader), closing(loader.epoch(0)) as batches:
            for batch, _, _ in batches:
                part = source.parts[batch[inputs.PART]]
                predictions = self.predicted(batch)
                places = None
                if isinstance(predictions, PredictedMaps | PredictedBoxes):
                    indices = batch["index"].cpu()
                    values = part.store.read(indices)[name]
                    reader = BatchReader(part.store, source.context)
                    places = inputs.image_places(reader, name, values, indices)
                yield Inferred(batch, part, predictions, places)

    def input_fields(self, given: Manifest) -> dict[str, Field]:
        """Return the fields of the data that the model takes, as its batches need them.

        ConfigError C352 if the data lacks a field, or its pixels are no numbers as in training.
        """
        where = given.source or "the data"
        taken = self._inputs_of(given.fields)
        fields = {n: inputs.as_trained(taken[n], self.train.fields.get(n)) for n in taken}
        lengths = [length_name(name, taken[name], self.config["collate"]) for name in taken]
        for name in self.predicts.inputs:
            if name not in fields and name not in lengths:
                has = listed([*given.fields])
                what = f"has no field {name!r}, which the model takes; it has {has}"
                fix = "name its fields as the training data has them, with the keys of input"
                raise ConfigError(352, where, what, fix)
        self._check_pixels(where, fields)
        return fields

    def _check_pixels(self, where: str, fields: Mapping[str, Field]) -> None:
        """Check that pixels have the type that they had in training. ConfigError C352.

        An augment that scales to floats takes integers by their white, and floats as they are.
        """
        scaled: set[str] = set()
        for _, part in flat_parts({"augment": self.augment}):
            traits = traits_of(part)
            scaled |= {*traits.normalized_fields, *traits.scaled_fields}
        for name, field in fields.items():
            trained = self.train.fields.get(name)
            forms = _pixel_form(field), _pixel_form(trained)
            if trained is None or None in forms or forms[0] == forms[1]:
                continue
            what = f"{name} is {field.dtype} here, and was {trained.dtype} in training"
            if name not in scaled:
                places = "input=dataset, or 'data.val={_target_: mine.Clips}'"
                fix = f"give {trained.dtype}: by your own Dataset ({places}), or a tensor in Python"
                raise ConfigError(352, where, what, fix)
            if "float" in forms:
                self.say(f"note: {where}: {what}; the augment takes floats to be from 0 to 1")

    def _inputs_of(self, fields: Mapping[str, Field]) -> Mapping[str, Field]:
        """Return the fields that the model takes; all if the objective does not say it."""
        if not isinstance(self.objective, Predicts):
            return fields
        return {name: fields[name] for name in self.objective.inputs if name in fields}

    def predicted(self, batch: Batch) -> Predictions:
        with torch.no_grad(), self.precision.autocast():
            return self.predicts.predict(self.model, batch)

    def predict(self, images: Any) -> list[dict[str, Any]]:
        """Predict images. Each gets what the run's validation does with its own.

        Args:
            images: A list of paths, PIL images or arrays uint8 or uint16 [H, W, C]; or a tensor
                [B, C, H, W]: uint8 or uint16 pixels, or floats as the model gets them, which are
                not changed.

        Returns:
            A dict for each image, by the objective: ``class``, ``probability`` and
            ``probabilities``; ``map`` (class numbers [H, W]); ``boxes``, ``scores`` and
            ``classes``; ``text``; ``numbers``; or ``image`` (uint8 [H, W, C]). Maps and boxes are
            in the pixels of the given image.

        Raises:
            ConfigError: C351 or C352 if the model does not predict, or takes no images; C360 for
                what is no image.
            DataError: D106 for a damaged file.
        """
        records: list[dict[str, Any]] = []
        if len(images) == 0:
            return records
        name = self.predicts.inputs[0]
        if isinstance(images, Tensor) and images.is_floating_point():
            for part in images.split(self.batch_size):
                predictions = self.predicted({name: part.to(self.device)})
                records += inputs.as_dicts(predictions, None, self.classes)
        else:
            given = self.prepared(inputs.ImageInput(images, name))
            for each in self.inferred(self.input_source(given)):
                records += inputs.as_dicts(each.predictions, each.places, self.classes)
        return records

    def close(self) -> None:
        if "parallel" in self.__dict__:
            self.parallel.close()


def only_fields(block: Any, names: Container[str]) -> Any:
    """Return an augment's block without what changes other fields; None if nothing is left."""
    if isinstance(block, list):
        return [part for item in block if (part := only_fields(item, names)) is not None]
    if not isinstance(block, dict):
        return block
    kept = {key: only_fields(value, names) for key, value in block.items() if key != "field"}
    if "field" in block:
        given = block["field"]
        if isinstance(given, list):
            given = [name for name in given if name in names]
        elif given not in names:
            given = None
        if not given:
            return None
        kept["field"] = given
    return kept


def _image_size(field: Field | None) -> Size | None:
    """Return (height, width) of a field's images, or None if they have no size in common."""
    if field is None or field.channels is None:
        return None
    height, width = field.shape[:2] if field.interleaved else field.shape[1:]
    return None if height is None or width is None else (height, width)


def _pixel_form(field: Field | None) -> str | None:
    if field is None or field.kind == "labels":
        return None
    if field.dtype.startswith("float") or field.kind == "audio":
        return "float"
    is_image = len(field.shape) > 1 and field.kind not in CARRIED
    return field.dtype if field.dtype in ("uint8", "uint16") and is_image else None


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
    return open_run(Path(run), targets.as_prefixes(allow_targets), str(weights), changes)


def open_run(
    run_dir: Path,
    allowed: Sequence[str],
    weights: str = BEST,
    changes: Mapping[str, Any] | None = None,
    say: Say = say,
) -> SavedRun:
    """Open the directory of a run, as ``load`` does.

    ``allowed`` are prefixes of the user's packages. ``changes`` replace keys and blocks of the
    configuration. CheckpointError K120; ConfigError C105 or C106 for what may not be called.
    """
    saved = read_config(run_dir)
    config = targets.completed({**saved.config, **(changes or {})})
    used = {name: config.get(name) for name in (*USED_PARTS, "data", "metrics")}
    if str(config["order"].get("_target_")).startswith(targets.OURS):  # others train alone
        used["order"] = config["order"]
    targets.check_targets(used, allowed)
    return SavedRun(run_dir, config, tuple(allowed), weights, saved, say)


def _source_of(data: Config, given: Any) -> Config:
    """Return the block of a source that reads ``given``: the run's own if the format fits."""
    own, makes = data["source"], targets.makes_data(data)
    opens = OPENS_FILES.fullmatch(own["_target_"])
    choice: str | None = None
    if not isinstance(given, str):
        choice = "dataset" if "_target_" in given and not makes else None
    elif makes or (opens is not None and opens[1] != "mixture"):
        if present := format_of(given):
            choice = present.choice
        elif os.path.isdir(given) and "manifest.json" not in os.listdir(given):
            choice = "folder"
        elif makes:
            choice = "hdf5"
    if choice is None or (opens is not None and opens[1] == choice):
        return own
    return {"_target_": f"framework.data.{choice}.{choice}_source"}


def chosen_file(run_dir: Path, weights: str) -> Path:
    """Return the file of the chosen weights; of the average, that of the newest state.

    CheckpointError K121 if it is missing.
    """
    folder = run_dir / FOLDER
    path = Path(weights)
    if weights == AVERAGE:
        path = newest_path(run_dir) or folder / "step-*.pt"
    elif weights == BEST and not (folder / "best.pt").exists():
        path = folder / "last.pt"  # a run without validation has no best weights
    elif weights in (BEST, LAST):
        path = folder / f"{weights}.pt"
    if not path.exists():
        fix = "wait for the run's first save, or give weights=best, last, average or a file"
        raise CheckpointError(121, f"weights = {path}", "no such file", fix)
    return weights_path(path)
