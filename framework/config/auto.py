"""What the word ``auto`` stands for: facts that a configuration takes from the data.

``in_channels``, ``channels``, ``num_classes``, ``mean`` and ``std`` may be ``auto`` anywhere in the
model, the objective, the transform, the augmentation and the metrics. Other keys with the value
``auto`` keep it. ``in_chans``, ``num_channels`` and ``num_labels`` are other libraries' names for
the first ones. A typed value counts, unless it contradicts the data.

``objective.predicts=auto`` is ``classes`` if the target holds whole numbers, else ``numbers``.

``objective.class_weights=balanced`` stands for weights by the label counts of the training data.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, NamedTuple, final

import numpy as np

from framework.config.declared_inputs import NOTHING, DeclaredInputs
from framework.config.targets import data_name, walk
from framework.contracts.data import Source
from framework.contracts.records import LABEL, ChannelStatistics, Manifest
from framework.data.classes import is_numbered
from framework.data.dali import DALISource
from framework.data.source import StoreSource
from framework.errors import ConfigError, did_you_mean, listed
from framework.store.channel_statistics import num_channels, of_batch, statistics_of
from framework.store.columns import StoreFacts

AUTO = "auto"
BALANCED = "balanced"
CLASS_WEIGHTS = "class_weights"
PREDICTS = "predicts"
CHANNELS = ("in_channels", "channels", "in_chans", "num_channels")
CLASSES = ("num_classes", "num_labels")
STATISTICS = ("mean", "std")
LIKELY_CHANNELS = (1, 3, 4)  # gray, RGB and RGBA
LEAST_SIDE = 8  # of an image
FEW_RECORDS = 128  # for the statistics of data that is no store
FACTS = (*CHANNELS, *CLASSES, *STATISTICS)
PARTS = ("model", "objective", "transform", "augment", "metrics")

Config = dict[str, Any]


class _Place(NamedTuple):
    """A fact in a configuration: the block that holds it, its dotted name, and its key."""

    block: Config
    name: str
    key: str

    @property
    def is_open(self) -> bool:
        """Whether the data decides."""
        return self.block[self.key] == (BALANCED if self.key == CLASS_WEIGHTS else AUTO)


def is_wanted(part: Any) -> bool:
    """Return whether a part of the configuration leaves a fact to the data."""
    return any(place.is_open for place in _places(part, ""))


def resolve(
    config: Config,
    source: Source,
    parts: Sequence[str] = PARTS,
    declared: DeclaredInputs = NOTHING,
) -> tuple[Config, Config]:
    """Replace ``auto`` by what ``source`` holds, and compare the typed facts with it.

    Args:
        config: Plain values.
        source: Reads the training data.
        parts: The names of the parts to look at.
        declared: What the model says about its inputs, which counts before the data.

    Returns:
        The configuration with numbers, and the numbers alone by dotted name.

    Raises:
        ConfigError: C154 or C156 for a typed value that contradicts the data, C157 for a fact that
            the data does not tell.
    """
    config = {**config, **{name: deepcopy(config.get(name)) for name in parts}}
    data = _Data(config, source, declared)
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

    Only a model that fails is compared: the manifest does not know what the user's own transform or
    augmentation makes of an image.

    ``why`` is what the model said.
    """
    data = _Data(config, source, NOTHING)
    for key in CHANNELS:
        typed = config["model"].get(key)
        stored = data.channels(data.input)
        if type(typed) is int and stored is not None and typed != stored:
            what = f"{data.path} has {data.input!r} with {_counted(stored, 'channel')} ({why})"
            fix = f"leave it out, or give {stored}"
            return ConfigError(155, f"model.{key} = {typed}", what, fix)
    return None


@final
class _Data:
    """The facts that the training data tells, each None if it does not."""

    def __init__(self, config: Config, source: Source, declared: DeclaredInputs) -> None:
        self.declared = declared
        self.source = source
        self.fields = source.manifest.fields
        self.path = data_name(config["data"]["train"])
        self.asked = config["objective"].get("input")
        self.input = self._input(self.asked)
        self.target = config["objective"].get("target")
        objective = config["objective"]
        losses = (objective.get("losses") or {}).values()
        blocks = [block for block in (objective, *losses) if isinstance(block, dict)]
        ignored = [block["ignore_index"] for block in blocks if "ignore_index" in block]
        self.ignore_index = ignored[0] if ignored else None
        self.num_classes = _num_classes(source.manifest, self.ignore_index)
        self._measured: dict[str, ChannelStatistics] | None = None

    def _input(self, given: Any) -> str | None:
        """Return the field that the model gets first: the objective's, or the first image."""
        if isinstance(given, list) and given:
            given = given[0]
        if isinstance(given, str):
            return given if given in self.fields else None
        images = [name for name, field in self.fields.items() if num_channels(field)]
        return next((name for name in ("image", *images) if name in self.fields), None)

    def channels(self, name: str | None) -> int | None:
        """Return the channels that a model sees: of an image or a video, or an array's first size.

        A signal, for example, has the shape [C, L].
        """
        field = self.fields.get(name or "")
        if field is None:
            return None
        if field.kind == "video":
            return field.shape[3]
        if field.channels is None and len(field.shape) >= 2:
            return field.shape[0]
        return field.channels

    def statistics(self, name: str | None) -> ChannelStatistics | None:
        """Return what was measured while packing. Data that was not packed is measured now."""
        if name is None or name not in self.fields or num_channels(self.fields[name]) is None:
            return None
        stored = self.source.manifest.statistics
        if name in stored:
            return stored[name]
        if isinstance(self.source, StoreSource | DALISource):
            if self._measured is None:
                self._measured = statistics_of(self.source.store)
            return self._measured.get(name)
        # A Dataset of the user's may take a long time for each item.
        return of_batch(self.source.sample(FEW_RECORDS)[name])

    def fact(self, place: _Place) -> Any:
        """Return what ``auto`` stands for at ``place``. ConfigError C157 if nothing tells it."""
        where = f"{place.name} = {place.block[place.key]}"
        if place.key == CLASS_WEIGHTS:
            return self._weights(where)
        if place.key == PREDICTS:
            field = self.fields.get(str(self.target))
            if field is None or field.kind == "image":
                return "numbers"
            return "classes" if np.issubdtype(field.dtype, np.integer) else "numbers"
        if place.key not in CLASSES:
            self._check_layout(place, where)
        if place.key in CLASSES:
            value, example = self._num_values() or self.num_classes, "10"
            what = f"{self.path} names no classes"
        elif place.key in CHANNELS:
            value, example = self.channels(self.input), "3"
            what = f"{self.path} has no field with channels for the model"
        else:
            value, example = self._moments(place), "[0.5]"
            what = f"{self.path} has no statistics of {_field_of(place.block)!r}"
        if value is None:
            if isinstance(self.source, StoreSource | DALISource):
                self.source.sample(1)  # a record that cannot be read is the reason
            fix = f"type it: {place.name}={example}, say"
            if place.key in CLASSES:
                what, fix = self._other_target(place) or (what, fix)
            asked = self.asked if place.key in CHANNELS else _field_of(place.block)
            images = [name for name, field in self.fields.items() if num_channels(field)]
            is_named = isinstance(asked, str) and asked not in self.fields and len(images) == 1
            if is_named and place.key not in CLASSES:
                what = f"{self.path} has no field {asked!r}, its images are {images[0]!r}"
                fix = f"set objective.input={images[0]} augment.field={images[0]}"
            raise ConfigError(157, where, f"cannot be known: {what}", fix)
        return value

    def _check_layout(self, place: _Place, where: str) -> None:
        """Raise ConfigError C157 for an array whose first axis is hardly the one of channels."""
        name = self.input if place.key in CHANNELS else _field_of(place.block)
        field = self.fields.get(name or "")
        if field is None or field.encoding != "raw" or field.channels is not None:
            return
        shape = [size or 0 for size in field.shape]
        what = f"{name!r} is {field.dtype} {shape}"
        if len(shape) == 3 and shape[2] in LIKELY_CHANNELS and _is_like_an_image(*shape[:2]):
            what += ", which looks like [height, width, channels]"
            shape = [shape[2], *shape[:2]]
        elif len(shape) == 2 and field.dtype == "uint8" and _is_like_an_image(*shape):
            what += ", which looks like an image without an axis of channels"
            shape = [1, *shape]
        else:
            return
        fix = f"change its shape to {shape}, or type {place.name} if the shape is right"
        raise ConfigError(157, where, f"cannot be known: {what}", fix)

    def _other_target(self, place: _Place) -> tuple[str, str] | None:
        """Return what is wrong, and what to do, if the target's field tells no classes."""
        if not isinstance(self.target, str):
            return None
        field = self.fields.get(self.target)
        if field is not None and field.encoding == "raw" and len(field.shape) == 1:
            length = field.shape[0]
            what = f"{self.path} names no classes, and {self.target!r} holds {length} numbers"
            example = f"type it: {place.name}={length} if each is 0 or 1 for a label of its own"
            return what, f"{example}, else the number of classes"
        if field is not None:
            return None
        hint = did_you_mean(self.target, list(self.fields))
        what = f"{self.path} has no field {self.target!r}{hint}"
        return what, f"set objective.target to one of {listed(list(self.fields))}"

    def _num_values(self) -> int | None:
        """Return how many numbers a record's target has, if they are no classes; else None.

        Floats are none. A vector of bool or uint8 that is not the field ``label`` of named classes
        has one for each label: whether it holds.
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
        """Return the weight of each class: its mean count over its own count of training records.

        A class without a record weighs 1. ConfigError C316 if the labels cannot be counted.
        """
        source, target = self.source, self.target
        if not isinstance(source, StoreSource | DALISource) or not isinstance(target, str):
            what = f"the labels of {self.path} cannot be counted before training"
            raise ConfigError(316, where, what, "give a weight for each class")
        labels = StoreFacts(source.store).values(target)[source.order.used().numpy()]
        labels = labels[labels != self.ignore_index]
        if not np.issubdtype(labels.dtype, np.integer) or labels.min(initial=0) < 0:
            what = f"{target!r} of {self.path} does not hold the numbers of classes"
            raise ConfigError(316, where, what, "give a weight for each class")
        counts = np.bincount(labels.astype(np.int64), minlength=self.num_classes or 0)
        mean = counts.sum() / max(1, np.count_nonzero(counts))
        return [round(float(mean / count), 6) if count else 1.0 for count in counts]

    def _moments(self, place: _Place) -> list[float] | None:
        field = _field_of(place.block)
        declared = self.declared.value(place.key)
        if declared is not None and len(declared) in (1, self.channels(field)):
            return declared
        statistics = self.statistics(field)
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
                fix = f"leave it out, or give {num_classes} or more"
                raise ConfigError(154, where, what, fix)
        elif place.key in STATISTICS and isinstance(value, list):
            self._check_length(place, len(value))
        elif place.key == CLASS_WEIGHTS and isinstance(value, list) and len(value) < num_classes:
            raise ConfigError(316, where, what, "give a weight for each, or balanced")

    def _check_length(self, place: _Place, length: int) -> None:
        name = _field_of(place.block)
        stored = self.channels(name)
        other = place.block.get("std" if place.key == "mean" else "mean")
        is_same = not isinstance(other, list) or len(other) == length
        if stored is None or (length in (1, stored) and is_same):
            return
        what = f"has {_counted(length, 'number')}, {name!r} has {_counted(stored, 'channel')}"
        if length in (1, stored):
            what = f"has {_counted(length, 'number')}, the other one of mean and std has not"
        fix = "leave mean and std out, or give both with one number, or with one per channel"
        raise ConfigError(156, f"{place.name} = {place.block[place.key]}", what, fix)


def _num_classes(manifest: Manifest, ignored: Any) -> int | None:
    """Return how many classes there are, None if they are not known.

    Labels of plain numbers up to ``ignored``, such as 255, end at the largest of the others.
    """
    size = len(manifest.classes)
    if ignored == size - 1 and is_numbered(manifest.classes) and manifest.class_counts:
        counted = [number for number, count in enumerate(manifest.class_counts) if count]
        size = 1 + max((number for number in counted if number != ignored), default=-1)
    return size or None


def _is_like_an_image(height: int, width: int) -> bool:
    """Return whether an array of this size is hardly a signal, which has few long channels."""
    return min(height, width) >= LEAST_SIDE and max(height, width) <= 3 * min(height, width)


def _places(part: Any, where: str) -> Iterator[_Place]:
    """Yield all facts in a part of the configuration."""
    for name, block in walk(part, where):
        if isinstance(block, dict):
            yield from (_Place(block, f"{name}.{key}", key) for key in block if key in FACTS)
            if name == "objective":
                own = [key for key in (CLASS_WEIGHTS, PREDICTS) if key in block]
                yield from (_Place(block, f"{name}.{key}", key) for key in own)


def _field_of(block: Config) -> str:
    """Return the field that a block changes; the first one if it changes several alike."""
    fields = block.get("field", "image")
    return str(fields[0]) if isinstance(fields, list) and fields else str(fields)


def _counted(number: int, noun: str, plural: str = "s") -> str:
    ending = "" if number == 1 else plural
    return f"{number} {noun}{ending}"
