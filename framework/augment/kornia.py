"""A list of Kornia's augmentations, on the device, seeded from our draws.

Kornia draws from torch's one random stream. So each record is done by itself, with that stream
seeded from its draws: about 1 ms per record and step. With ``together``, a whole batch uses its
first record's draws, which is 80 times faster, but then a record's change depends on its batch.
"""

from collections.abc import Sequence
from typing import Any, Self, final

import torch
from torch import Tensor

from framework.augment.normalize import Fields, PixelAugment, fields_of, unit
from framework.contracts.batch import Batch
from framework.contracts.records import IGNORE
from framework.errors import ResourceError
from framework.system.user_code import Step, make_step, pip_install


@final
class Kornia(PixelAugment):
    """Kornia's augmentations in training.

    A step of the ``pipeline`` is such as ``{name: RandomRotation, params: {degrees: 10.0}}``.
    Images, integers or floats in [0, 1], become float32 in [0, 1], outside training too. Devices
    agree to rounding only, since the kernels are Kornia's. Label maps move alike, to the nearest
    pixel, and are ``IGNORE`` where the image is black. Changes of color leave them alone.
    """

    num_draws = 2
    moves_pixels = True

    def __init__(self, field: Fields, pipeline: Sequence[Step], together: bool) -> None:
        if not pipeline:
            raise ValueError("pipeline = [] changes nothing")
        try:
            from kornia import augmentation as library  # noqa: PLC0415  # optional: an extra
        except ImportError as error:
            what = f"Kornia is not installed ({error})"
            raise ResourceError(131, "augment = kornia", what, pip_install("kornia")) from error
        self.fields = self.unit_fields = self.scaled_fields = fields_of(field)
        self.together = together
        kinds = {
            name: kind
            for name, kind in vars(library).items()
            if isinstance(kind, type) and issubclass(kind, library.AugmentationBase2D)
            if "Base" not in kind.__name__
        }
        self.steps = [
            make_step("kornia.augmentation", kinds, step, f"augment.pipeline.{number}")
            for number, step in enumerate(pipeline)
        ]
        self._sequence_of: Any = library.AugmentationSequential
        self.sequence = self._sequence_of(*self.steps, data_keys=["input"] * len(self.fields))

    def with_labels(self, labels: Sequence[str]) -> Self:
        known = super().with_labels(labels)
        keys = ["input"] * len(known.fields) + ["mask"] * len(known.labels)
        known.sequence = self._sequence_of(*self.steps, data_keys=keys)
        return known

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        result = dict(batch)
        for name in self.fields:
            result[name] = unit(batch[name])
        if draws is None:
            return result
        images = [result[name] for name in self.fields]
        # Label maps are inverted, so that zeros filled in become ``IGNORE``.
        images += [(IGNORE - batch[name]).float() for name in self.labels]
        size = len(draws) if self.together else 1
        devices = [draws.device] if draws.is_cuda else []
        parts: list[list[Tensor]] = []
        with torch.no_grad(), torch.random.fork_rng(devices):
            high, low = (draws[::size] * 2.0**24).long().unbind(1)
            seeds = ((high << 24) | low).tolist()  # of 48 bits, each from two draws of 24
            for start, seed in zip(range(0, len(draws), size), seeds, strict=True):
                torch.default_generator.manual_seed(seed)
                if draws.is_cuda:
                    torch.cuda.manual_seed(seed)  # some augmentations draw on the device
                part = self.sequence(*(image[start : start + size] for image in images))
                parts.append([part] if isinstance(part, Tensor) else list(part))
        names = (*self.fields, *self.labels)
        for name, column in zip(names, zip(*parts, strict=True), strict=True):
            result[name] = torch.cat(column)
        for name in self.labels:
            result[name] = IGNORE - result[name].to(torch.uint8)
        return result
