"""What a model of another library says about the images that its weights were trained on.

Where size, mean or deviation of an image is ``auto``, it becomes what the model declares.
"""

import json
import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from copy import deepcopy
from math import isfinite
from typing import Any, NamedTuple

from framework.config.foreign_models import FOLDER, is_foreign, is_from_folder
from framework.config.targets import Config, walk
from framework.errors import ConfigError

AUTO = "auto"
PROCESSOR = "preprocessor_config.json"
MOST_PIXELS = 1 << 14  # of a side
PIXEL = 1 / 255  # the scale for bytes in 0..1, as our parts take mean and std
CLOSE = 1e-3  # between two values that are meant to be the same


class DeclaredInputs(NamedTuple):
    """What a model declares; None for what it does not say.

    Attributes:
        size: Height and width in pixels.
        resize: The shorter side before the crop, in pixels.
        mean: Per channel, for pixels in 0..1.
        std: The same.
    """

    size: list[int] | None = None
    resize: int | None = None
    mean: list[float] | None = None
    std: list[float] | None = None

    def value(self, key: str) -> Any:
        """Return what is declared for a key of a transform or an augmentation."""
        return self._asdict().get(key)


NOTHING = DeclaredInputs()
SIZES = ("size", "resize")
STATISTICS = ("mean", "std")


def declared_inputs(config: Config) -> DeclaredInputs:
    """Return what the model declares, if its weights are pretrained or ``init`` gives some.

    A run of ours, whose weights know other numbers, declares nothing.
    """
    block = config["model"]
    target = str(block.get("_target_"))
    start = config["init"]["weights"]
    is_given = start is not None and not os.path.isdir(start)
    if is_from_folder(target):
        return _of_folder(str(block.get(FOLDER) or next(iter(block.get("_args_") or []), "")))
    is_trained = is_given or block.get("pretrained") or block.get("weights")
    if is_foreign(target) and is_trained:
        # building the model says what is wrong with a name, or that the package is missing
        with suppress(ImportError, RuntimeError, ValueError, KeyError):
            if target.startswith("timm."):
                return _of_timm(block)
            if target.startswith("torchvision."):
                return _of_torchvision(target.rpartition(".")[2], block.get("weights"))
    return NOTHING


def _of_folder(folder: str) -> DeclaredInputs:
    """Read the file of a folder of Hugging Face. ConfigError C305 if it is damaged."""
    path = os.path.join(folder, PROCESSOR)
    if not os.path.isfile(path):
        return NOTHING
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
        declared = DeclaredInputs(_pair(size if crop is None else crop), resize)
        is_scaled = abs(given.get("rescale_factor", PIXEL) - PIXEL) < CLOSE * PIXEL
        if not given.get("do_normalize", True) or not is_scaled:
            return declared
        mean, std = _numbers(given.get("image_mean")), _numbers(given.get("image_std"))
        return declared._replace(mean=mean, std=std)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        what = f"is no description of images ({type(error).__name__})"
        fix = "correct it, or remove it and type what the model needs"
        raise ConfigError(305, path, what, fix) from error


def _pair(size: Any) -> list[int] | None:
    """Return height and width of a number, a block or a list of them."""
    if size is None or (isinstance(size, dict) and "height" not in size):
        return None
    sides = [size["height"], size["width"]] if isinstance(size, dict) else size
    sides = list(sides) if isinstance(sides, list | tuple) else [sides]
    height, width = sides * 2 if len(sides) == 1 else sides
    return [_pixels(height), _pixels(width)]


def _pixels(value: Any) -> int:
    if type(value) is not int or not 0 < value <= MOST_PIXELS:
        raise ValueError("no number of pixels")
    return value


def _numbers(values: Any) -> list[float] | None:
    if values is None:
        return None
    numbers = [float(value) for value in values]
    if not 0 < len(numbers) <= 64 or not all(map(isfinite, numbers)):
        raise ValueError("no numbers per channel")
    return numbers


def _of_timm(block: Config) -> DeclaredInputs:
    from timm import get_pretrained_cfg  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    given = get_pretrained_cfg(block["model_name"])
    if given is None:
        return NOTHING
    size = _pair(block.get("img_size") or None) or list(given.input_size[1:])
    resize = round(min(size) / (given.crop_pct or 1))
    return DeclaredInputs(size, resize, _numbers(given.mean), _numbers(given.std))


def _of_torchvision(name: str, weights: Any) -> DeclaredInputs:
    from torchvision.models import get_model_weights  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    chosen = str(weights or "DEFAULT").rpartition(".")[2]
    given = vars(get_model_weights(name)[chosen].transforms())
    resize = given.get("resize_size")
    size = _pair(given.get("crop_size") or resize)
    shorter = resize[0] if resize else None
    return DeclaredInputs(size, shorter, _numbers(given.get("mean")), _numbers(given.get("std")))


def with_declared_sizes(config: Config, declared: DeclaredInputs) -> tuple[Config, Config]:
    """Replace ``auto`` sizes of the transforms by what the model declares.

    Returns:
        The configuration, and the sizes by dotted name.

    Raises:
        ConfigError: C304 if the model declares no size.
    """
    config = deepcopy(config)
    numbers: Config = {}
    for name, block, key in _places(config, SIZES):
        if block[key] == AUTO:
            value = declared.value(key)
            if value is None:
                what = "cannot be known: the model declares no such size for its weights"
                raise ConfigError(304, f"{name} = {AUTO}", what, f"type it: {name}=[224,224], say")
            numbers[name] = block[key] = value
    return config, numbers


def contradictions(
    config: Config, declared: DeclaredInputs, automatic: Collection[str]
) -> list[str]:
    """Return a note for each typed size, mean and deviation that differs from what is declared.

    ``automatic`` are the dotted names of values that nobody has typed.
    """
    notes: list[str] = []
    for name, block, key in _places(config, (*SIZES, *STATISTICS)):
        wanted = declared.value(key)
        value = block[key]
        is_typed = value is not None and name not in automatic
        if is_typed and wanted is not None and not _is_same(value, wanted):
            notes.append(f"{name}={value} differs from what the model declares, {wanted}")
    return notes


def _is_same(value: Any, wanted: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    others = wanted if isinstance(wanted, list) else [wanted]
    if len(values) != len(others):
        return len(values) == 1 and all(_is_same(values[0], other) for other in others)
    return all(abs(own - other) < CLOSE for own, other in zip(values, others, strict=True))


def _places(config: Config, keys: tuple[str, ...]) -> Iterator[tuple[str, Config, str]]:
    """Yield (dotted name, block, key) of the keys of our parts that change images."""
    parts = {name: config[name] for name in ("transform", "augment")}
    parts["data.val_transform"] = config["data"].get("val_transform")
    for part, root in parts.items():
        for name, block in walk(root, part):
            if isinstance(block, dict) and str(block.get("_target_")).startswith("framework."):
                yield from ((f"{name}.{key}", block, key) for key in keys if key in block)
