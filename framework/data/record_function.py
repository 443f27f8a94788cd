"""Runs the function of a transform over the images or arrays of a slice of records."""

from collections.abc import Iterator
from typing import final

import numpy as np
import torch

from framework.contracts.batch import Batch
from framework.contracts.data import RecordFunction
from framework.contracts.records import RecordStore
from framework.data.pictures import uneven
from framework.data.requests import Request, Slice, plain
from framework.errors import DataError, PacelineError, UserRecordError
from framework.media.scale import scale_into
from framework.order.draws import record_seeds
from framework.system.user_code import user_error

ONE_SIZE = "let the function return one size, in validation too: transform.evaluation=true"


@final
class FunctionOfRecords:
    """Calls a user's function, record by record, and puts its results together.

    Args:
        store: Names the records in errors.
        function: As ``Transform.function``.
        arrays: The names of the fields that are no images.
        collate: What a batch makes of results.
        seed: Of the run.
    """

    def __init__(
        self,
        store: RecordStore,
        function: RecordFunction,
        arrays: set[str],
        collate: str,
        seed: int,
    ) -> None:
        self._store = store
        self._function = function
        self._arrays = arrays
        self._collate = collate
        self._seed = seed

    def __call__(
        self,
        pixels: dict[str, Iterator[np.ndarray]],
        request: Request,
        part: Slice,
    ) -> Batch:
        """Return the function's results: [B, C, h, w], or a list of B with ``collate=list``."""
        seeds: list[int | None] = [None] * len(part.indices)
        if request.training:
            seeds = record_seeds(part.keys, self._seed, request.epoch).tolist()
        lists: Batch = {name: [] for name in pixels}
        stacked: dict[str, np.ndarray] = {}
        for place, (index, seed) in enumerate(zip(part.indices.tolist(), seeds, strict=True)):
            images = {name: next(images) for name, images in pixels.items()}
            changed = self._change(images, index, seed)
            part.seconds[place] += part.watch.mark("transform")
            for name, planes in changed.items():
                if self._collate == "list":
                    lists[name].append(torch.from_numpy(_copied(planes)))
                    continue
                if name not in stacked:
                    shape = (len(part.indices), *planes.shape)
                    stacked[name] = np.empty(shape, planes.dtype)
                if planes.shape != stacked[name].shape[1:]:
                    shapes = planes.shape, stacked[name].shape[1:]
                    raise uneven(self._store, index, "the function made", *shapes, ONE_SIZE)
                _copied(planes, stacked[name][place])
            part.watch.mark("collate")
        if self._collate == "list":
            return lists
        return {name: torch.from_numpy(array) for name, array in stacked.items()}

    def _change(
        self, images: dict[str, np.ndarray], index: int, seed: int | None
    ) -> dict[str, np.ndarray]:
        """Return the function's result for a record, [C, h, w]. Its errors name the record."""
        try:
            changed = self._function(dict(images), seed)
            if changed.keys() != images.keys():
                raise ValueError(f"gave {sorted(changed)}, was given {sorted(images)}")
            arrays = {name: np.asarray(image) for name, image in changed.items()}
            return {
                name: array.transpose(2, 0, 1)
                if array.ndim == 3 and name not in self._arrays
                else array
                for name, array in arrays.items()
            }
        except PacelineError:
            raise
        except (Exception, SystemExit) as error:
            raise self._fault(index, error) from error

    def _fault(self, index: int, error: BaseException) -> PacelineError:
        record = self._store.name(index)
        fix = "correct the function, or see it with debug=trace workers.num=0"
        fault = user_error(error, about=record, fix=fix, kind=UserRecordError)
        if fault is not None:
            return fault
        return DataError(120, record, f"the transform failed on it ({plain(error)})", fix)


def _copied(planes: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Copy a function's result into ``out``, or into new memory, and return this."""
    if out is None:
        out = np.empty(planes.shape, planes.dtype)
    if planes.dtype == out.dtype == np.uint8 and planes.ndim == 3:
        scale_into(planes.transpose(1, 2, 0), False, 0, out)
    else:
        np.copyto(out, planes)
    return out
