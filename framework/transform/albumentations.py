"""A pipeline of Albumentations' transforms on a record's images, one seed per record, so that a pair is changed alike.

Albumentations 2.0.8 is the last MIT release, and is maintained no more; its successor has another license. Importing it takes some
1.5 s, building a pipeline 0.1 to 1 ms for each thread, seeding it 60 us a record (two cores of a Xeon, three transforms).
It holds Python's lock for much of its work: workers.kind=process.
"""

import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from random import Random
from typing import Any, final

import cv2
import numpy as np
from torch import Tensor

from framework.contracts.data import RecordFunction, Transform
from framework.contracts.records import IGNORE
from framework.errors import ConfigError, ResourceError
from framework.transform.function import Images, checked

Step = Mapping[str, Any]  # name, params, and for a composition (OneOf, ...) steps
NEAREST = (cv2.INTER_NEAREST, cv2.INTER_NEAREST_EXACT)


def _import() -> Any:
    os.environ.setdefault(
        "NO_ALBUMENTATIONS_UPDATE", "1"
    )  # importing it asks the internet for a newer version
    try:
        import albumentations  # noqa: PLC0415  # optional: an extra
    except ImportError as error:
        fix = "pip install 'paceline[albumentations]'"
        raise ResourceError(
            130, "transform = albumentations", f"Albumentations is not installed ({error})", fix
        ) from error
    return albumentations


def _is_theirs(library: Any, kind: Any) -> bool:
    known = (library.BasicTransform, library.BaseCompose)
    return (
        isinstance(kind, type)
        and issubclass(kind, known)
        and kind.__module__.startswith("albumentations.")
    )


def _make(library: Any, step: Step, where: str) -> Any:
    """One transform. ConfigError C130 for a name that is none of theirs, C131 for parameters it refuses or would ignore."""
    name, params, steps = str(step.get("name")), dict(step.get("params") or {}), step.get("steps")
    kind: Any = getattr(library, name, None)
    if unknown := sorted(step.keys() - {"name", "params", "steps"}):
        raise ConfigError(
            131, f"{where}.{unknown[0]}", "not a key of a step", "a step has name, params and steps"
        )
    if not _is_theirs(library, kind):
        close = get_close_matches(
            name,
            [word for word in dir(library) if _is_theirs(library, getattr(library, word))],
            n=1,
        )
        hint = f"did you mean {close[0]}?" if close else "name a class of albumentations"
        raise ConfigError(
            130, f"{where}.name = {name}", "Albumentations has no such transform", hint
        )
    if steps is not None:
        params["transforms"] = [
            _make(library, inner, f"{where}.steps.{number}") for number, inner in enumerate(steps)
        ]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "error"
            )  # it would only warn of a parameter that it does not know
            return kind(**params)
    except (TypeError, ValueError, UserWarning) as error:
        raise ConfigError(
            131, f"{where} = {name}", " ".join(str(error).split())[:300], "correct its params"
        ) from error


def _params(step: Step) -> Iterator[Mapping[str, Any]]:
    """The parameters of a step and of the steps inside it."""
    yield step.get("params") or {}
    for inner in step.get("steps") or ():
        yield from _params(inner)


@final
class Pipeline:
    """The pipeline as a ``RecordFunction``. Each thread has its own, because seeding one and running it are two calls."""

    def __init__(
        self,
        steps: Sequence[Step],
        masks: Sequence[str],
        evaluation: bool,
        inverted: Sequence[str] = (),
    ) -> None:
        self.steps, self.masks, self.evaluation, self.inverted = steps, masks, evaluation, inverted
        self._local = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return Pipeline, (self.steps, self.masks, self.evaluation, self.inverted)

    def with_labels(self, labels: Sequence[str]) -> "Pipeline":
        """A copy that treats ``labels`` as masks, and fills them with ``IGNORE`` unless a step has a ``fill_mask`` of its own.

        The library fills masks with 0, so they go through it as ``IGNORE`` minus each number. ConfigError C193 for a step that would
        blend them.
        """
        params = [params for step in self.steps for params in _params(step)]
        for given in params:
            if given.get("mask_interpolation", cv2.INTER_NEAREST) not in NEAREST:
                where = f"transform.pipeline: mask_interpolation = {given['mask_interpolation']}"
                raise ConfigError(
                    193,
                    where,
                    f"would blend {', '.join(labels)}, a label map",
                    "leave it out, or give 0",
                )
        inverted = () if any("fill_mask" in given for given in params) else labels
        return Pipeline(
            self.steps, tuple(dict.fromkeys((*self.masks, *labels))), self.evaluation, inverted
        )

    def __call__(self, images: Images, seed: int | None) -> Images:
        if seed is None and not self.evaluation:
            return images
        names, compose = self._compose(tuple(images))
        # not set_random_seed: it starts every step alike, so that a horizontal and a vertical flip always come together
        compose.set_random_state(np.random.default_rng(seed or 0), Random(seed or 0))  # noqa: S311
        given = {
            field: IGNORE - image if field in self.inverted else image
            for field, image in images.items()
        }
        found = compose(**{names[field]: image for field, image in given.items()})
        results = {field: found[name] for field, name in names.items()}
        results = {
            field: IGNORE - image if field in self.inverted else image
            for field, image in results.items()
        }
        return checked(
            images,
            {
                field: image[..., None] if image.ndim == 2 else image
                for field, image in results.items()
            },
            "pipeline",
        )

    def _compose(self, fields: tuple[str, ...]) -> tuple[dict[str, str], Any]:
        """(their name for each field, the pipeline over these), made once per thread. The first image is their ``image``."""
        if getattr(self._local, "fields", None) != fields:
            library = _import()
            main = next((field for field in fields if field not in self.masks), "")
            names = {
                field: "image" if field == main else f"field{number}"
                for number, field in enumerate(fields)
            }
            targets = {
                names[field]: "mask" if field in self.masks else "image"
                for field in fields
                if field != main
            }
            made = [
                _make(library, step, f"transform.pipeline.{number}")
                for number, step in enumerate(self.steps)
            ]
            self._local.found = names, library.Compose(made, additional_targets=targets)
            self._local.fields = fields
        return self._local.found


@final
class Albumentations:
    """``pipeline``: steps in turn, each ``{name: HorizontalFlip, params: {p: 0.5}}``; OneOf and the like have ``steps`` of their own.
    ``geometry``: a Transform that is done first, with our faster cutting and scaling; ``masks``: fields that are maps of labels, besides those that the data says are: moved
    like the images, but never blended or colored; ``evaluation``: run it outside training too (there every record is changed alike).
    """

    def __init__(
        self, pipeline: Sequence[Step], geometry: Transform, masks: Sequence[str], evaluation: bool
    ) -> None:
        if not pipeline:
            raise ValueError("pipeline = [] changes nothing")
        library = _import()
        for number, step in enumerate(
            pipeline
        ):  # so that what is wrong is said before the first record
            _make(library, step, f"transform.pipeline.{number}")
        self.geometry = geometry
        self.size, self.antialias, self.num_draws = (
            geometry.size,
            geometry.antialias,
            geometry.num_draws,
        )
        self.function: RecordFunction | None = Pipeline(pipeline, masks, evaluation)

    def windows(self, sizes: Tensor, draws: Tensor | None) -> Tensor:
        return self.geometry.windows(sizes, draws)
