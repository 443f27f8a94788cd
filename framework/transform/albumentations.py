"""A pipeline of Albumentations' transforms on a record's images, with one seed per record.

Version 2.0.8 is the last MIT release. Use ``workers.kind=process``: it often holds Python's lock.
"""

import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, final

import cv2
import numpy as np

from framework.contracts.data import Transform
from framework.contracts.records import IGNORE
from framework.errors import ConfigError, ResourceError
from framework.system.user_code import Step, make_step, pip_install
from framework.transform.function import AfterGeometry, Images, checked

KEYS = ("name", "params", "steps")  # a composition, such as OneOf, has steps
NEAREST = (cv2.INTER_NEAREST, cv2.INTER_NEAREST_EXACT)


@final
class Albumentations(AfterGeometry):
    """Albumentations' transforms after any geometry, which cuts and scales faster.

    OneOf and the like have ``steps`` of their own. ``masks`` are label maps besides those that the
    data declares: moved, but never blended or colored. With ``evaluation`` it runs outside training
    too, where it changes every record alike.
    """

    def __init__(
        self, pipeline: Sequence[Step], geometry: Transform, masks: Sequence[str], evaluation: bool
    ) -> None:
        if not pipeline:
            raise ValueError("pipeline = [] changes nothing")
        _make_all(_import(), pipeline, "transform.pipeline")  # fails before the first record
        super().__init__(geometry, Pipeline(pipeline, masks, evaluation))


@final
@dataclass
class Pipeline:
    """The pipeline as a ``RecordFunction``."""

    steps: Sequence[Step]
    masks: Sequence[str]
    evaluation: bool
    inverted: Sequence[str] = ()  # masks that pass through it as ``IGNORE`` minus each number

    def __post_init__(self) -> None:
        # each thread has pipelines of its own, because seeding one and running it are two calls
        self._of_thread = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return Pipeline, (self.steps, self.masks, self.evaluation, self.inverted)

    def with_labels(self, labels: Sequence[str]) -> "Pipeline":
        """Return a copy that treats ``labels`` as masks, filled with ``IGNORE``.

        The library fills masks with 0, so they pass through it inverted. A step's own ``fill_mask``
        prevents that. ConfigError C193 if a step would blend label maps.
        """
        all_params = [params for step in self.steps for params in _params(step)]
        for params in all_params:
            if params.get("mask_interpolation", cv2.INTER_NEAREST) not in NEAREST:
                where = f"transform.pipeline: mask_interpolation = {params['mask_interpolation']}"
                what = f"would blend {', '.join(labels)}, a label map"
                raise ConfigError(193, where, what, "leave it out, or give 0")
        inverted = () if any("fill_mask" in params for params in all_params) else labels
        masks = tuple(dict.fromkeys((*self.masks, *labels)))
        return Pipeline(self.steps, masks, self.evaluation, inverted)

    def __call__(self, images: Images, seed: int | None) -> Images:
        if seed is None and not self.evaluation:
            return images
        known: dict[tuple[str, ...], tuple[dict[str, str], Any]]
        known = vars(self._of_thread).setdefault("known", {})
        fields = tuple(images)
        if fields not in known:
            library = _import()
            first = [field for field in fields if field not in self.masks][:1]
            names = {field: f"field{number}" for number, field in enumerate(fields)}
            others = [field for field in fields if field not in first]
            kinds = {names[field]: "mask" if field in self.masks else "image" for field in others}
            names |= dict.fromkeys(first, "image")  # for which the library asks
            steps = _make_all(library, self.steps, "transform.pipeline")
            known[fields] = names, library.Compose(steps, additional_targets=kinds)
        names, compose = known[fields]
        # set_random_seed would start every step alike: two kinds of flips would always coincide
        compose.set_random_state(np.random.default_rng(seed or 0), Random(seed or 0))  # noqa: S311
        inverted = [field for field in fields if field in self.inverted]
        given = {**images, **{field: IGNORE - images[field] for field in inverted}}
        changed = compose(**{names[field]: image for field, image in given.items()})
        results = {field: changed[name] for field, name in names.items()}
        results |= {field: IGNORE - results[field] for field in inverted}
        results = {field: image.reshape(*image.shape[:2], -1) for field, image in results.items()}
        return checked(images, results, "pipeline")


def _params(step: Step) -> Iterator[Mapping[str, Any]]:
    yield step.get("params") or {}
    for inner in step.get("steps") or ():
        yield from _params(inner)


def _import() -> Any:
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # importing it would ask the internet
    try:
        import albumentations  # noqa: PLC0415  # optional: an extra
    except ImportError as error:
        what = f"Albumentations is not installed ({error})"
        fix = pip_install("albumentations")
        raise ResourceError(130, "transform = albumentations", what, fix) from error
    return albumentations


def _make_all(library: Any, steps: Sequence[Step], where: str) -> list[Any]:
    """Return the transforms. A step that the library refuses or ignores raises ConfigError."""
    known = (library.BasicTransform, library.BaseCompose)
    kinds = {
        name: kind
        for name, kind in vars(library).items()
        if isinstance(kind, type) and issubclass(kind, known)
        if kind.__module__.startswith("albumentations.")
    }
    made: list[Any] = []
    for number, step in enumerate(steps):
        place = f"{where}.{number}"
        inner: dict[str, Any] = {}
        if step.get("steps") is not None:
            inner["transforms"] = _make_all(library, step["steps"], f"{place}.steps")
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it only warns of a parameter that it does not know
            made.append(make_step("albumentations", kinds, step, place, KEYS, **inner))
    return made
