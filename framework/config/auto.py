"""What the word ``auto`` stands for: facts that a configuration takes from its model or its data.

A model of another library declares size, mean and deviation of the images that its weights were
trained on, which count before the data. A typed value counts, unless it contradicts the data.
"""

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, NamedTuple, final

import numpy as np

from framework.config.targets import FOLDER, Config, data_name, is_foreign, is_from_folder, walk
from framework.contracts.data import Source
from framework.contracts.records import LABEL, ChannelStatistics, Field, is_numbered
from framework.data.dali import DALISource
from framework.data.source import StoreSource
from framework.errors import ConfigError, did_you_mean, listed
from framework.store.store_facts import StatisticsSampler, StoreFacts, num_channels, statistics_of

AUTO = "auto"
CLASS_WEIGHTS = "class_weights"
PREDICTS = "predicts"
CHANNELS = ("in_channels", "channels", "in_chans", "num_channels")  # the last two: of libraries
CLASSES = ("num_classes", "num_labels")
STATISTICS = ("mean", "std")
SIZES = ("size", "resize")
LIKELY_CHANNELS = (1, 3, 4)  # gray, RGB and RGBA
LEAST_SIDE = 8  # of an image
FEW_RECORDS = 128  # for the statistics of data that is no store
FACTS = (*CHANNELS, *CLASSES, *STATISTICS)
PARTS = ("model", "objective", "transform", "augment", "metrics")
PROCESSOR = "preprocessor_config.json"
MOST_PIXELS = 1 << 14  # of a side
PIXEL = 1 / 255  # the scale for bytes in 0..1, as our parts take mean and std
CLOSE = 1e-3  # between two values that are meant to be the same

# What a model says about its images, None for what it does not say: ``size`` (height and width in
# pixels), ``resize`` (the shorter side before the crop), ``mean`` and ``std`` (per channel, for
# pixels in 0..1).
Declared = Mapping[str, Any]


def declared_inputs(config: Config) -> Declared:
    """Return what the model declares, if its weights are pretrained or ``init`` gives some.

    A run of ours, whose weights know other numbers, declares nothing. ConfigError C305 for a
    damaged folder of Hugging Face.
    """
    block = config["model"]
    target = str(block.get("_target_"))
    start = config["init"]["weights"]
    if is_from_folder(target):
        return _of_folder(str(block.get(FOLDER) or next(iter(block.get("_args_") or []), "")))
    is_given = start is not None and not os.path.isdir(start)
    if is_foreign(target) and (is_given or block.get("pretrained") or block.get("weights")):
        # building the model says what is wrong with a name, or that the package is missing
        with suppress(ImportError, RuntimeError, ValueError, KeyError):
            if target.startswith("timm."):
                from timm import get_pretrained_cfg  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

                if (known := get_pretrained_cfg(block["model_name"])) is not None:
                    size = _pair(block.get("img_size") or None) or list(known.input_size[1:])
                    resize = round(min(size) / (known.crop_pct or 1))
                    return _declared(size, resize, known.mean, known.std)
            if target.startswith("torchvision."):
                from torchvision.models import get_model_weights  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

                weights = str(block.get("weights") or "DEFAULT").rpartition(".")[2]
                given = vars(get_model_weights(target.rpartition(".")[2])[weights].transforms())
                resize, *_ = given.get("resize_size") or [None]
                size = _pair(given.get("crop_size") or resize)
                return _declared(size, resize, given.get("mean"), given.get("std"))
    return {}


def _declared(size: Any, resize: Any, mean: Any, std: Any) -> Declared:
    known: Config = {"size": size, "resize": resize}
    for name, values in (("mean", mean), ("std", std)):
        known[name] = None if values is None else [float(value) for value in values]
    return known


def _of_folder(folder: str) -> Declared:
    path = os.path.join(folder, PROCESSOR)
    if not os.path.isfile(path):
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            given = json.load(file)
        size = given.get("size")
        crop = given.get("crop_size") if given.get("do_center_crop") else None
        shortest = size.get("shortest_edge") if isinstance(size, dict) else None
        resize = None if shortest is None or crop is None else _pixels(shortest)
        if shortest is not None and crop is None and "crop_pct" in given:
            crop = shortest
            resize = round(_pixels(shortest) / given["crop_pct"])
        mean, std = given.get("image_mean"), given.get("image_std")
        is_scaled = abs(given.get("rescale_factor", PIXEL) - PIXEL) < CLOSE * PIXEL
        if not given.get("do_normalize", True) or not is_scaled:
            mean = std = None
        return _declared(_pair(size if crop is None else crop), resize, mean, std)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        what = f"is no description of images ({type(error).__name__})"
        fix = "correct it, or remove it and type what the model needs"
        raise ConfigError(305, path, what, fix) from error


def _pair(size: Any) -> list[int] | None:
    if size is None or (isinstance(size, dict) and "height" not in size):
        return None
    if isinstance(size, dict):
        size = [size["height"], size["width"]]
    height, width = size if isinstance(size, list | tuple) and len(size) > 1 else np.repeat(size, 2)
    return [_pixels(height), _pixels(width)]


def _pixels(value: Any) -> int:
    if int(value) != value or not 0 < value <= MOST_PIXELS:
        raise ValueError("no number of pixels")
    return int(value)


def with_declared_sizes(config: Config, declared: Declared) -> tuple[Config, Config]:
    """Replace ``auto`` sizes of the transforms by what the model declares.

    Return the configuration, and the sizes by dotted name. ConfigError C304 for a size that the
    model does not declare.
    """
    config = deepcopy(config)
    numbers: Config = {}
    for name, block, key in _image_keys(config, SIZES):
        if block[key] == AUTO:
            value = declared.get(key)
            if value is None:
                what = "cannot be known: the model declares no such size for its weights"
                raise ConfigError(304, f"{name} = {AUTO}", what, f"type it: {name}=[224,224], say")
            numbers[name] = block[key] = value
    return config, numbers


def contradictions(config: Config, declared: Declared, automatic: Collection[str]) -> list[str]:
    """Return a note for each typed size, mean and deviation that differs from what is declared.

    ``automatic`` are the dotted names of values that nobody has typed.
    """
    notes: list[str] = []
    for name, block, key in _image_keys(config, (*SIZES, *STATISTICS)):
        wanted, value = declared.get(key), block[key]
        if value is None or wanted is None or name in automatic:
            continue
        own, other = np.atleast_1d(value), np.atleast_1d(wanted)
        fits = len(own) in (1, len(other)) and np.allclose(own, other, rtol=0, atol=CLOSE)
        if not fits:
            notes.append(f"{name}={value} differs from what the model declares, {wanted}")
    return notes


def _image_keys(config: Config, keys: tuple[str, ...]) -> Iterator[tuple[str, Config, str]]:
    parts = {name: config[name] for name in ("transform", "augment")}
    parts["data.val_transform"] = config["data"].get("val_transform")
    for part, root in parts.items():
        for name, block in walk(root, part):
            if isinstance(block, dict) and str(block.get("_target_")).startswith("framework."):
                yield from ((f"{name}.{key}", block, key) for key in keys if key in block)


class _Place(NamedTuple):
    block: Config
    name: str
    key: str

    @property
    def is_open(self) -> bool:
        return self.block[self.key] == ("balanced" if self.key == CLASS_WEIGHTS else AUTO)

    @property
    def field(self) -> str:
        """The field that the block changes; the first one if it changes several alike."""
        return str(_first(self.block.get("field", "image")))


def _places(part: Any, where: str) -> Iterator[_Place]:
    for name, block in walk(part, where):
        if isinstance(block, dict):
            own = (CLASS_WEIGHTS, PREDICTS) if name == "objective" else ()
            for key in (*FACTS, *own):
                if key in block:
                    yield _Place(block, f"{name}.{key}", key)


def is_wanted(part: Any) -> bool:
    return any(place.is_open for place in _places(part, ""))


def resolve(
    config: Config, source: Source, parts: Sequence[str] = PARTS, declared: Declared | None = None
) -> tuple[Config, Config]:
    """Replace ``auto`` in some parts by what ``source`` holds, and compare the typed facts with it.

    Return the configuration with numbers, and the numbers alone by dotted name.

    Raises:
        ConfigError: C154 or C156 for a typed value that contradicts the data, C157 for a fact that
            the data does not tell, C316 for weights of classes.
    """
    config = {**config, **{name: deepcopy(config.get(name)) for name in parts}}
    data = _Data(config, source, declared or {})
    numbers: Config = {}
    for part in parts:
        for place in list(_places(config[part], part)):
            if place.is_open:
                numbers[place.name] = place.block[place.key] = data.fact(place)
        for place in _places(config[part], part):
            data.check(place)
    return config, numbers


def wrong_channels(config: Config, source: Source, why: str) -> ConfigError | None:
    """Return the error of a model that fails because another number of channels was typed, or None.

    Only a model that failed, as it says ``why``, is compared: the manifest does not know what the
    user's own transform or augmentation makes of an image.
    """
    data = _Data(config, source, {})
    stored = data.channels(data.input)
    for key in CHANNELS:
        typed = config["model"].get(key)
        if type(typed) is int and stored is not None and typed != stored:
            what = f"{data.path} has {data.input!r} with {_counted(stored, 'channel')} ({why})"
            fix = f"leave it out, or give {stored}"
            return ConfigError(155, f"model.{key} = {typed}", what, fix)
    return None


@final
class _Data:
    def __init__(self, config: Config, source: Source, declared: Declared) -> None:
        self.declared = declared
        self.source = source
        self.fields = source.manifest.fields
        self.path = data_name(config["data"]["train"])
        objective = config["objective"]
        self.images = [name for name, field in self.fields.items() if num_channels(field)]
        self.asked = _first(objective.get("input"))
        candidates = ("image", *self.images)
        if isinstance(self.asked, str):
            candidates = (self.asked,)
        # what the model gets first
        self.input = next((name for name in candidates if name in self.fields), None)
        self.target = objective.get("target")
        losses = (objective.get("losses") or {}).values()
        blocks = [block for block in (objective, *losses) if isinstance(block, dict)]
        ignored = (block["ignore_index"] for block in blocks if "ignore_index" in block)
        self.ignore_index = next(ignored, None)
        manifest = source.manifest
        size = len(manifest.classes)
        # Labels of plain numbers up to ``ignored``, such as 255, end at the largest of the others.
        is_ignored = self.ignore_index == size - 1 and is_numbered(manifest.classes)
        if is_ignored and manifest.class_counts:
            size = 1 + max(np.flatnonzero(manifest.class_counts[:-1]).tolist(), default=-1)
        self.num_classes = size or None
        self._measured: dict[str, ChannelStatistics] | None = None

    def channels(self, name: str | None) -> int | None:
        """Return the channels that a model sees: of an image or video, or an array's first size."""
        field = self.fields.get(name or "")
        if field is None:
            return None
        if field.kind == "video":
            return field.shape[3]
        if field.channels is None and len(field.shape) >= 2:  # such as a signal [C, L]
            return field.shape[0]
        return field.channels

    def fact(self, place: _Place) -> Any:
        """Return what ``auto`` stands for at ``place``. ConfigError C157 if nothing tells it."""
        where = f"{place.name} = {place.block[place.key]}"
        if place.key == CLASS_WEIGHTS:
            return self._weights(where)
        if place.key == PREDICTS:
            field = self.fields.get(str(self.target))
            is_whole = field is not None and np.issubdtype(field.dtype, np.integer)
            return "classes" if field and is_whole and field.kind != "image" else "numbers"
        names = list(self.fields)
        if place.key in CLASSES:
            asked, value, example = self.target, self._num_values() or self.num_classes, "10"
            what = "names no classes"
        elif place.key in CHANNELS:
            self._check_layout(where, place.name, self.input)
            asked, value, example = self.asked, self.channels(self.input), "3"
            what = "has no field with channels for the model"
        else:
            asked = place.field
            self._check_layout(where, place.name, asked)
            value, example = self._moments(place), "[0.5]"
            what = f"has no statistics of {asked!r}"
        if value is not None:
            return value
        if isinstance(self.source, StoreSource | DALISource):
            self.source.sample(1)  # a record that cannot be read is the reason
        fix = f"type it: {place.name}={example}, say"
        if isinstance(asked, str) and asked not in names:
            if place.key in CLASSES:
                what = f"has no field {asked!r}{did_you_mean(asked, names)}"
                fix = f"set objective.target to one of {listed(names)}"
            elif len(self.images) == 1:
                name = self.images[0]
                what = f"has no field {asked!r}, its images are {name!r}"
                fix = f"set objective.input={name} augment.field={name}"
        raise ConfigError(157, where, f"cannot be known: {self.path} {what}", fix)

    def _check_layout(self, where: str, key: str, name: str | None) -> None:
        """Raise ConfigError C157 for an array whose first axis is hardly the one of channels."""
        field = self.fields.get(name or "")
        if field is None or field.encoding != "raw" or field.channels is not None:
            return
        shape = [size or 0 for size in field.shape]
        # a signal has few channels, and is long
        sides = sorted(shape[:2])
        if len(sides) < 2 or sides[0] < LEAST_SIDE or sides[1] > 3 * sides[0]:
            return
        what = f"cannot be known: {name!r} is {field.dtype} {shape}"
        if len(shape) == 3 and shape[2] in LIKELY_CHANNELS:
            what += ", which looks like [height, width, channels]"
            shape = [shape[2], *shape[:2]]
        elif len(shape) == 2 and field.dtype == "uint8":
            what += ", which looks like an image without an axis of channels"
            shape = [1, *shape]
        else:
            return
        fix = f"change its shape to {shape}, or type {key} if the shape is right"
        raise ConfigError(157, where, what, fix)

    def _num_values(self) -> int | None:
        """Return how many numbers a record's target has, if they are no classes.

        A vector of bool or uint8 says for each label whether it holds, unless it is the field
        ``label`` of named classes.
        """
        field = self.fields.get(self.target) if isinstance(self.target, str) else None
        if field is None or field.encoding != "raw" or len(field.shape) > 1:
            return None
        is_float = np.issubdtype(field.dtype, np.floating)
        is_named = self.target == LABEL and self.num_classes is not None
        are_flags = field.dtype in ("bool", "uint8") and field.shape not in ((), (1,))
        if not is_float and (is_named or not are_flags):
            return None
        return field.shape[0] if field.shape else 1

    def _weights(self, where: str) -> list[float]:
        """Return the weight of each class: the mean count of a class over its own.

        A class without a record weighs 1.
        """
        source, target = self.source, self.target
        fix = "give a weight for each class"
        if not isinstance(source, StoreSource | DALISource) or not isinstance(target, str):
            what = f"the labels of {self.path} cannot be counted before training"
            raise ConfigError(316, where, what, fix)
        labels = StoreFacts(source.store).values(target)[source.order.used().numpy()]
        labels = labels[labels != self.ignore_index]
        if not np.issubdtype(labels.dtype, np.integer) or labels.min(initial=0) < 0:
            what = f"{target!r} of {self.path} does not hold the numbers of classes"
            raise ConfigError(316, where, what, fix)
        counts = np.bincount(labels.astype(np.int64), minlength=self.num_classes or 0)
        mean = counts.sum() / max(1, np.count_nonzero(counts))
        return [round(float(mean / count), 6) if count else 1.0 for count in counts]

    def _moments(self, place: _Place) -> list[float] | None:
        name = place.field
        declared = self.declared.get(place.key)
        if declared is not None and len(declared) in (1, self.channels(name)):
            return declared
        if name not in self.images:
            return None
        statistics = self.source.manifest.statistics.get(name)
        if statistics is None and isinstance(self.source, StoreSource | DALISource):
            self._measured = self._measured or statistics_of(self.source.store)
            statistics = self._measured.get(name)
        elif statistics is None:  # a Dataset of the user's may take a long time for each item
            images = self.source.sample(FEW_RECORDS)[name]
            field = Field(str(images.dtype).removeprefix("torch."), tuple(images.shape[1:]))
            sampler = StatisticsSampler({name: field}, len(images))
            sampler.pass_by({name: images}, len(images))
            statistics = sampler.result().get(name)
        if statistics is None:
            return None
        if place.key == "mean":
            return list(statistics.mean)
        # a constant channel is only shifted
        return [deviation or 1.0 for deviation in statistics.std]

    def check(self, place: _Place) -> None:
        """Raise ConfigError C154, C156 or C316 if the value typed there contradicts the data."""
        value = place.block[place.key]
        where, num_classes = f"{place.name} = {value}"[:100], self.num_classes or 0
        what = f"{self.path} has {_counted(num_classes, 'class', 'es')}"
        if place.key in CLASSES and type(value) is int and self._num_values() is None:
            # a block inside a model may classify something else
            is_compared = place.name.startswith(("augment.", "metrics."))
            if (is_compared or place.name.count(".") == 1) and value < num_classes:
                raise ConfigError(154, where, what, f"leave it out, or give {num_classes} or more")
        elif place.key == CLASS_WEIGHTS and isinstance(value, list) and len(value) < num_classes:
            raise ConfigError(316, where, what, "give a weight for each, or balanced")
        elif place.key in STATISTICS and isinstance(value, list):
            stored = self.channels(place.field)
            other = place.block.get("std" if place.key == "mean" else "mean")
            is_same = not isinstance(other, list) or len(other) == len(value)
            if stored is None or (len(value) in (1, stored) and is_same):
                return
            what = f"{place.field!r} has {_counted(stored, 'channel')}"
            if len(value) in (1, stored):
                what = "the other one of mean and std has not"
            what = f"has {_counted(len(value), 'number')}, {what}"
            fix = "leave mean and std out, or give both with one number, or with one per channel"
            raise ConfigError(156, where, what, fix)


def _first(names: Any) -> Any:
    return names[0] if isinstance(names, list) and names else names


def _counted(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"
