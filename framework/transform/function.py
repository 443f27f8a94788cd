"""Your own function of a record's images, after any geometry: what has no window and no size."""

from collections.abc import Callable
from functools import partial
from typing import Any, final

import numpy as np
from torch import Tensor

from framework.contracts.data import RecordFunction, Transform

Images = dict[str, Any]  # uint8 [H, W, C] numpy arrays by field


def checked(images: Images, found: Any, name: str) -> Images:
    """``found``, what ``name`` made of ``images``, each in one piece. ValueError where it is not images of the same fields; the reader
    says which record it was.
    """
    if not isinstance(found, dict) or found.keys() != images.keys():
        given = ", ".join(map(str, found)) if isinstance(found, dict) else type(found).__name__
        raise ValueError(
            f"{name} returned {given}, not {', '.join(images)}: return a dict of the same fields"
        )
    for field, image in images.items():
        result = found[field]
        if (
            not isinstance(result, np.ndarray)
            or result.dtype != np.uint8
            or result.shape[2:] != image.shape[2:]
            or not result.size
        ):
            kind = (
                f"{result.dtype} {list(result.shape)}"
                if isinstance(result, np.ndarray)
                else type(result).__name__
            )
            wanted = f"uint8 [height, width, {image.shape[2]}]"
            raise ValueError(
                f"{name} made {field} {kind}, not {wanted}: leave normalizing and tensors to augment="
            )
    return {field: np.ascontiguousarray(found[field]) for field in images}


@final
class Change:
    """A user's function as a ``RecordFunction``. Picklable where the function is."""

    def __init__(
        self, function: Callable[[Images, np.random.Generator], Images], evaluation: bool
    ) -> None:
        self.evaluation = evaluation
        # Hydra's partial asks for leave at each call, 80 us
        self.function = (
            partial(function.func, *function.args, **function.keywords)
            if isinstance(function, partial)
            else function
        )

    def __call__(self, images: Images, seed: int | None) -> Images:
        if seed is None and not self.evaluation:
            return images
        return checked(
            images, self.function(dict(images), np.random.default_rng(seed or 0)), self._name
        )

    @property
    def _name(self) -> str:
        function = self.function.func if isinstance(self.function, partial) else self.function
        return str(getattr(function, "__qualname__", function))


@final
class FunctionTransform:
    """``function(images, rng)``: uint8 [H, W, C] numpy arrays by field, all of a record at once, and a ``numpy.random.Generator`` of
    this record alone -> the same fields, other pixels or sizes. ``geometry``: a Transform that is done first; ``evaluation``: call it
    outside training too (there each record's generator starts alike). A function that holds Python's lock wants workers.kind=process.
    """

    def __init__(
        self, function: Callable[..., Images], geometry: Transform, evaluation: bool
    ) -> None:
        self.geometry = geometry
        self.size, self.antialias, self.num_draws = (
            geometry.size,
            geometry.antialias,
            geometry.num_draws,
        )
        self.function: RecordFunction | None = Change(function, evaluation)

    def windows(self, sizes: Tensor, draws: Tensor | None) -> Tensor:
        return self.geometry.windows(sizes, draws)
