"""A list of Kornia's augmentations, on the device, seeded from our draws.

Kornia draws from torch's one random stream, so each record is done by itself, with that stream seeded from the record's draws and put
back after. It costs some 1 ms for each record and step (two cores of a Xeon, 32x32; 256 records of four steps: 1.2 s), and the host
waits for the draws. ``together`` does a batch at once, 80 times faster, from the first record's draws: then what happens to a record
depends on its batch, and another number of ranks learns something else. Our own augments have neither cost.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, final

import torch
from torch import Tensor

from framework.augment.labels import inverted, moving
from framework.augment.normalize import Fields, fields_of, unit
from framework.contracts.batch import Batch
from framework.errors import ConfigError, ResourceError

Step = Mapping[str, Any]  # name and params


def _import() -> Any:
    try:
        import kornia.augmentation  # noqa: PLC0415  # optional: an extra
    except ImportError as error:
        fix = "pip install 'paceline[kornia]'"
        raise ResourceError(
            131, "augment = kornia", f"Kornia is not installed ({error})", fix
        ) from error
    return kornia.augmentation


def _make(library: Any, step: Step, where: str) -> Any:
    """One augmentation. ConfigError C130 for a name that is none of theirs, C131 for parameters it refuses."""
    name = str(step.get("name"))
    kind: Any = getattr(library, name, None)
    if unknown := sorted(step.keys() - {"name", "params"}):
        raise ConfigError(
            131, f"{where}.{unknown[0]}", "not a key of a step", "a step has name and params"
        )
    if not _is_theirs(library, kind):
        close = get_close_matches(
            name,
            [word for word in dir(library) if _is_theirs(library, getattr(library, word))],
            n=1,
        )
        hint = (
            f"did you mean {close[0]}?"
            if close
            else "name a class of kornia.augmentation for images"
        )
        raise ConfigError(130, f"{where}.name = {name}", "Kornia has no such augmentation", hint)
    try:
        return kind(**(step.get("params") or {}))
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise ConfigError(
            131, f"{where} = {name}", " ".join(str(error).split())[:300], "correct its params"
        ) from error


def _is_theirs(library: Any, kind: Any) -> bool:
    return (
        isinstance(kind, type)
        and issubclass(kind, library.AugmentationBase2D)
        and "Base" not in kind.__name__
    )


@contextmanager
def _borrowed(device: torch.device) -> Generator[torch.Generator]:
    """The one random stream on the host, to be seeded; put back at the end, with the device's, which some augmentations use."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield torch.default_generator


def _seeds(draws: Tensor) -> list[int]:
    """48 bits of two draws of 24."""
    high, low = (draws * 2.0**24).long().unbind(1)
    return ((high << 24) | low).tolist()


@final
class Kornia:
    """``field``: the image's name in the batch, or several that are changed alike; ``pipeline``: steps in turn, each ``{name: RandomRotation,
    params: {degrees: 10.0}}``; ``together``: as above. uint8, or floats in [0, 1], become float32 in [0, 1], also outside training, where
    nothing else is done. Devices agree to rounding only: its kernels are its own. Label maps are moved alike, to the nearest pixel, and
    are IGNORE where the image is black; colors are not changed there.
    """

    num_draws = 2

    def __init__(self, field: Fields, pipeline: Sequence[Step], together: bool) -> None:
        if not pipeline:
            raise ValueError("pipeline = [] changes nothing")
        library = _import()
        self.fields, self.together = fields_of(field), together
        self.labels: tuple[str, ...] = ()
        self.steps = [
            _make(library, step, f"augment.pipeline.{number}")
            for number, step in enumerate(pipeline)
        ]
        self.sequence = library.AugmentationSequential(
            *self.steps, data_keys=["input"] * len(self.fields)
        )

    def with_labels(self, labels: Sequence[str]) -> "Kornia":
        known = moving(self, self.fields, labels)
        keys = ["input"] * len(known.fields) + ["mask"] * len(known.labels)
        known.sequence = _import().AugmentationSequential(*self.steps, data_keys=keys)
        return known

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        images = [unit(batch[name]) for name in self.fields]
        if draws is not None:
            maps = [inverted(batch[name]).float() for name in self.labels]
            images = self._changed([*images, *maps], draws)
        found = dict(zip((*self.fields, *self.labels), images, strict=draws is not None))
        return {
            **batch,
            **{
                name: inverted(t.to(torch.uint8)) if name in self.labels else t
                for name, t in found.items()
            },
        }

    def _changed(self, images: list[Tensor], draws: Tensor) -> list[Tensor]:
        size = len(draws) if self.together else 1
        parts: list[list[Tensor]] = []
        with torch.no_grad(), _borrowed(draws.device) as stream:
            for start, seed in zip(range(0, len(draws), size), _seeds(draws[::size]), strict=True):
                stream.manual_seed(seed)
                if draws.is_cuda:
                    torch.cuda.manual_seed(seed)
                found = self.sequence(*(image[start : start + size] for image in images))
                parts.append([found] if isinstance(found, Tensor) else list(found))
        return [torch.cat(column) for column in zip(*parts, strict=True)]
