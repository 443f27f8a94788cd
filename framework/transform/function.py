"""Your own function of a record's images, after any geometry, or of its arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
from torch import Tensor

from framework.contracts.data import KnowsLabels, RecordFunction, TakesArrays, Transform

Images = dict[str, Any]  # uint8 [H, W, C] numpy arrays by field, or arrays of any kind


def checked(images: Images, result: Any, name: str) -> Images:
    """Return the result of ``name`` for ``images`` as contiguous arrays.

    ValueError, to which the reader adds the record, for anything but images of the same fields.
    """
    if not isinstance(result, dict) or result.keys() != images.keys():
        given = ", ".join(map(str, result)) if isinstance(result, dict) else type(result).__name__
        what = f"{name} returned {given}, not {', '.join(images)}"
        raise ValueError(f"{what}: return a dict of the same fields")
    for field, image in images.items():
        new = result[field]
        is_image = image.dtype == np.uint8 and image.ndim == 3
        kind = type(new).__name__
        if isinstance(new, np.ndarray):
            kind = f"{new.dtype} {list(new.shape)}"
            fits = not is_image or (new.shape[2:] == image.shape[2:] and new.size)
            if new.dtype == image.dtype and fits:
                continue
        wanted = f"{image.dtype}: return an array of this dtype"
        if is_image:
            wanted = f"uint8 [height, width, {image.shape[2]}]: "
            wanted += "leave normalizing and tensors to augment="
        raise ValueError(f"{name} made {field} {kind}, not {wanted}")
    return {field: np.ascontiguousarray(result[field]) for field in images}


@final
class Change:
    """A user's function as a ``RecordFunction``. It is picklable if the function is."""

    takes_arrays = True

    def __init__(self, function: Callable[..., Images], evaluation: bool) -> None:
        self.evaluation = evaluation
        self.function = inner = function
        if isinstance(function, partial):
            # Hydra's partial asks for permission at each call, which takes 80 us
            self.function = partial(function.func, *function.args, **function.keywords)
            inner = function.func
        self._name = str(getattr(inner, "__qualname__", inner))  # a callable object has none

    def __call__(self, images: Images, seed: int | None) -> Images:
        if seed is None and not self.evaluation:
            return images
        result = self.function(dict(images), np.random.default_rng(seed or 0))
        return checked(images, result, self._name)


@final
@dataclass(frozen=True)
class InTurn:
    """A ``RecordFunction`` that calls two of them, each with a seed of its own."""

    first: RecordFunction
    then: RecordFunction

    @property
    def takes_arrays(self) -> bool:
        parts = (self.first, self.then)
        return all(isinstance(part, TakesArrays) and part.takes_arrays for part in parts)

    def with_labels(self, labels: Sequence[str]) -> "InTurn":
        """Return a copy in which both treat ``labels`` as label maps, if they know any."""
        parts = (self.first, self.then)
        return InTurn(*(p.with_labels(labels) if isinstance(p, KnowsLabels) else p for p in parts))

    def __call__(self, images: Images, seed: int | None) -> Images:
        # With one seed, mirror images of the first would always coincide with the other's.
        other = None if seed is None else (seed + 1) % 2**63
        return self.then(self.first(images, other), seed)


class AfterGeometry(Transform):
    """A Transform whose function runs after the windows of another Transform, and its function."""

    def __init__(self, geometry: Transform, function: RecordFunction) -> None:
        if geometry.samples:
            what = "geometry cuts sounds, and a function changes images"
            raise ValueError(f"{what}: choose transform=sound_window alone")
        if geometry.scales:
            what = "geometry leaves images of several sizes"
            raise ValueError(f"{what}: choose transform=compose, with a crop behind it")
        self.geometry = geometry
        self.size = geometry.size
        self.antialias = geometry.antialias
        self.num_draws = geometry.num_draws
        self.function: RecordFunction | None = function
        if geometry.function is not None:
            self.function = InTurn(geometry.function, function)
        self.turns = geometry.turns

    def windows(self, sizes: Tensor, draws: Tensor | None) -> Tensor:
        return self.geometry.windows(sizes, draws)


@final
class FunctionTransform(AfterGeometry):
    """A user's function, called for each record after ``geometry`` and its function.

    ``function(images, rng)`` gets all images of a record, uint8 [H, W, C] numpy arrays by field,
    and a ``numpy.random.Generator`` of this record alone. It returns the same fields with other
    pixels or sizes. In data without images it gets the arrays of a record as they are stored, and
    returns arrays of the same dtypes. One that holds Python's lock needs ``workers.kind=process``.
    With ``evaluation`` it runs outside training too, with the same generator for each record.
    """

    def __init__(self, function: Callable[..., Any], geometry: Transform, evaluation: bool) -> None:
        super().__init__(geometry, Change(function, evaluation))
