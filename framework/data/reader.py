"""One batch: read, decode, transform. Picklable, so any kind of worker can do it; in slices, so that several can share a batch."""

import math
import sys
from functools import cached_property
from time import perf_counter
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.batch import Batch
from framework.contracts.data import KnowsLabels, RecordFunction, SourceContext, Transform
from framework.contracts.records import Field, Records, RecordStore
from framework.errors import DataError, PacelineError, UserRecordError, words_of
from framework.image.crop import window_pixels
from framework.image.decode import accepted_header
from framework.image.header import BadImage, ImageHeader
from framework.image.label_map import decode_labels
from framework.image.scale import scale_into
from framework.measure.stopwatch import Stopwatch
from framework.order import ON_HOST, draws, record_seeds
from framework.system.user_code import user_error

UNUSED = 2  # references to an array in a list: the list's, and the argument that asks


class Request(NamedTuple):
    """One batch to be read. ``training`` False: the transform draws nothing. ``verify``: compare records with their CRC32."""

    epoch: int
    indices: Tensor
    training: bool
    verify: bool = False


def is_cut(field: Field, transform: Transform) -> bool:
    """Whether a field is more than gathered: image files and interleaved pixels always, pixels in planes where the transform changes any."""
    if field.encoding != "raw" or field.interleaved:
        return True
    changes = (
        transform.size is not None or transform.num_draws > 0 or transform.function is not None
    )
    return field.channels is not None and changes


@final
class ReadWork:
    """A batch that is being read. Slices of it may be filled by different threads; ``images`` is where they write, where it is known.

    ``slices_s``: the seconds per stage of each slice that is filled, and of finishing.
    """

    def __init__(self, request: Request, images: dict[str, Tensor]) -> None:
        self.request, self.images = request, images
        self.parts: dict[int, Batch] = {}
        self.slices_s: list[dict[str, float]] = []


class Timed(NamedTuple):
    """A batch, and the seconds per stage it took, slice by slice."""

    batch: Batch
    slices_s: list[dict[str, float]]


@final
class _Memory:
    """Memory of batches that nobody holds any more, used again: fresh memory costs a page fault per 4 kB, more than decoding a thumbnail.

    A tensor made of a numpy array holds it as long as the tensor or any view of it lives, so that the array's reference count tells.
    """

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []

    def __getstate__(self) -> dict[str, Any]:
        return {"_arrays": []}

    def take(self, *shape: int) -> Tensor:
        """uint8 of this shape, its content undefined."""
        size = math.prod(shape)
        for number in range(len(self._arrays)):
            if (
                self._arrays[number].size >= size
                and sys.getrefcount(self._arrays[number]) == UNUSED
            ):
                return torch.from_numpy(self._arrays[number][:size]).view(shape)
        self._arrays = [
            array for array in self._arrays if array.size >= size
        ]  # outgrown ones go as their batches do
        self._arrays.append(np.empty(size, np.uint8))
        return torch.from_numpy(self._arrays[-1]).view(shape)


@final
class BatchReader:
    """Reads batches from a store. ``index`` is added to every batch; image fields become uint8 [B, C, H, W]."""

    def __init__(self, store: RecordStore, context: SourceContext) -> None:
        self.store, self.transform, self.seed = store, context.transform, context.seed
        self._memory = _Memory()

    @cached_property
    def function(self) -> RecordFunction | None:
        """The transform's function, which knows which fields are label maps."""
        function, labels = self.transform.function, self.store.manifest.label_maps
        return (
            function.with_labels(labels)
            if labels and isinstance(function, KnowsLabels)
            else function
        )

    @cached_property
    def cut(self) -> dict[str, Field]:
        """The fields a transform has a say in."""
        return {
            name: field
            for name, field in self.store.manifest.fields.items()
            if is_cut(field, self.transform)
        }

    @cached_property
    def views(self) -> list[str]:
        """Raw fields of which only a window is wanted: no need to copy them first."""
        return [name for name, field in self.cut.items() if field.encoding == "raw"]

    @property
    def decodes(self) -> bool:
        """Whether reading costs more than copying: worth a pool of threads."""
        return bool(self.cut)

    def __call__(self, request: Request) -> Batch:
        if (
            not self.cut and not request.verify
        ):  # the shortest way: small records take less time than the rest of this class
            return {"index": request.indices, **self.store.read(request.indices)}
        return self._done(request)[0]

    def timed(self, request: Request) -> Timed:
        """The batch, all of it read in this thread, and where the time went."""
        if self.cut:
            return self._done(request)
        start = perf_counter()
        return Timed(self(request), [{"read": perf_counter() - start}])

    def _done(self, request: Request) -> Timed:
        work = self.begin(request)
        self.fill(work, 0, len(request.indices))
        return Timed(self.finish(work), work.slices_s)

    def begin(self, request: Request) -> ReadWork:
        """The memory of a batch: that of images whose size is known."""
        size, images = self.transform.size, dict[str, Tensor]()
        if size is not None and self.function is None:
            for name, field in self.cut.items():
                images[name] = self._memory.take(len(request.indices), field.channels or 3, *size)
        return ReadWork(request, images)

    def fill(self, work: ReadWork, start: int, stop: int) -> None:
        """Records ``start``..``stop`` of the batch. Slices may be filled at the same time."""
        watch = Stopwatch()
        indices = work.request.indices[start:stop]
        records = self.store.read(indices, self.views)
        if work.request.verify:
            check_crcs(self.store, indices, records)
        watch.mark("read")
        whole = start == 0 and stop == len(work.request.indices)
        outs = {
            name: (image if whole else image[start:stop]) for name, image in work.images.items()
        }
        images = self._images(indices, records, work.request, outs, watch)
        fields = self.store.manifest.fields
        work.parts[start] = {
            name: images[name] if name in images else records[name] for name in fields
        }
        work.slices_s.append(watch.stages_s)

    def finish(self, work: ReadWork) -> Batch:
        """The batch, once all its slices are filled."""
        watch = Stopwatch()
        indices = work.request.indices
        parts = [work.parts[start] for start in sorted(work.parts)]
        batch: Batch = {"index": indices}
        for name in self.store.manifest.fields:
            batch[name] = (
                work.images[name]
                if name in work.images
                else self._joined([part[name] for part in parts], indices)
            )
        watch.mark("collate")
        work.slices_s.append(watch.stages_s)
        return batch

    def _joined(self, parts: list[Tensor], indices: Tensor) -> Tensor:
        if len(parts) == 1:
            return parts[0]
        first = 0
        for part in parts:
            if part.shape[1:] != parts[0].shape[1:]:
                raise self._uneven(
                    int(indices[first]), tuple(part.shape[1:]), tuple(parts[0].shape[1:])
                )
            first += len(part)
        return torch.cat(parts)

    def _images(
        self,
        indices: Tensor,
        records: Records,
        request: Request,
        outs: dict[str, Tensor],
        watch: Stopwatch,
    ) -> Batch:
        """The fields that are ``cut``: uint8 [B, C, h, w], or what the transform's function makes of them."""
        if not self.cut:
            return {}
        numbers = (
            draws(indices, self.seed, request.epoch, self.transform.num_draws, ON_HOST)
            if request.training
            else None
        )
        watch.mark("transform")
        if self.function is None:
            return {
                name: self._cut(field, records[name], indices, numbers, outs.get(name), watch)
                for name, field in self.cut.items()
            }
        pixels = {
            name: self._pixels(field, records[name], indices, numbers, watch)
            for name, field in self.cut.items()
        }
        return self._changed(pixels, indices, request, watch)

    def _cut(
        self,
        field: Field,
        values: Any,
        indices: Tensor,
        numbers: Tensor | None,
        out: Tensor | None,
        watch: Stopwatch,
    ) -> Tensor:
        """Each image's window, written to ``out``; without it, to memory made for the first one's size."""
        planes: Any = None if out is None else out.numpy()
        transform, channels = self.transform, field.channels or 3
        interleaved = field.encoding == "image" or field.interleaved
        for number, (pixels, window) in enumerate(
            self._windows(field, values, indices, numbers, watch)
        ):
            shape = (channels, *(transform.size or window[2:4]))
            if planes is None:
                planes = np.empty((len(indices), *shape), np.uint8)
            if planes.shape[1:] != shape:
                raise self._uneven(int(indices[number]), shape, planes.shape[1:])
            labels = field.kind == "labels"
            scale_into(
                pixels,
                interleaved,
                transform.size,
                transform.antialias,
                window[4],
                planes[number],
                labels,
            )
        watch.mark("transform")
        return torch.from_numpy(planes) if out is None else out

    def label_map(self, name: str, values: Any, indices: Tensor, numbers: Tensor | None) -> Tensor:
        """Cut the records' label maps: uint8 [B, 1, h, w].

        Args:
            name: The field.
            values: What the store gave for ``indices``.
            indices: The records' numbers, int64 [B].
            numbers: The transform's random numbers, float32 [B, num_draws]; None outside training.

        """
        return self._cut(
            self.store.manifest.fields[name], values, indices, numbers, None, Stopwatch()
        )

    def _uneven(self, index: int, shape: tuple[int, ...], other: tuple[int, ...]) -> DataError:
        what = f"the image is {shape}, another of its batch {other}"
        return DataError(
            107, self.store.name(index), what, "set transform=resize, or pack with one size"
        )

    def _windows(
        self, field: Field, values: Any, indices: Tensor, numbers: Tensor | None, watch: Stopwatch
    ) -> Any:
        """One after the other (pixels, window), unscaled: of encoded images [h, w, C], in memory that holds until the next; of pixels
        stored raw as they lie there.
        """
        raw, size, channels = field.encoding == "raw", self.transform.size, field.channels or 3
        headers = [] if raw else self._headers(values, indices, watch)
        stored = field.shape[:2] if field.interleaved else field.shape[1:]
        sizes = [stored] * len(values) if raw else [header.size for header in headers]
        windows: Any = self.transform.windows(torch.tensor(sizes), numbers).tolist()
        watch.mark("transform")
        for number, window in enumerate(windows):
            if raw:
                top, left, height, width, _ = window
                place = (slice(top, top + height), slice(left, left + width))
                yield (
                    np.asarray(values[number])[
                        place if field.interleaved else (slice(None), *place)
                    ],
                    window,
                )
                continue
            try:
                if field.kind == "labels":
                    top, left, height, width, _ = window
                    pixels = decode_labels(values[number])[top : top + height, left : left + width]
                else:
                    pixels = window_pixels(values[number], headers[number], channels, window, size)
            except BadImage as error:
                raise self._bad(int(indices[number]), error) from error
            watch.mark("decode")
            yield pixels, window
            watch.mark("transform")  # what was done with them meanwhile

    def _headers(self, values: Any, indices: Tensor, watch: Stopwatch) -> list[ImageHeader]:
        headers: list[ImageHeader] = []
        for index, data in zip(indices.tolist(), values, strict=True):
            try:
                headers.append(accepted_header(data))
            except BadImage as error:
                raise self._bad(index, error) from error
        watch.mark("decode")
        return headers

    def _bad(self, index: int, error: BadImage) -> DataError:
        return DataError(
            106, self.store.name(index), f"not a readable image ({error})", "mend or remove it"
        )

    def _pixels(
        self, field: Field, values: Any, indices: Tensor, numbers: Tensor | None, watch: Stopwatch
    ) -> Any:
        """One after the other: windows for the transform's function, scaled and flipped, [h, w, C], its own."""
        for number, _ in enumerate(indices):
            one = slice(number, number + 1)
            image = self._cut(
                field,
                values[one],
                indices[one],
                None if numbers is None else numbers[one],
                None,
                watch,
            )
            yield np.ascontiguousarray(image[0].permute(1, 2, 0).numpy())

    def _changed(
        self, pixels: dict[str, Any], indices: Tensor, request: Request, watch: Stopwatch
    ) -> Batch:
        """What the transform's function makes of each record's images, stacked."""
        seeds = (
            record_seeds(indices, self.seed, request.epoch).tolist()
            if request.training
            else [None] * len(indices)
        )
        results: dict[str, list[Tensor]] = {name: [] for name in pixels}
        for number, (index, seed) in enumerate(zip(indices.tolist(), seeds, strict=True)):
            images = {name: next(images) for name, images in pixels.items()}
            for name, tensor in self._change(images, index, seed).items():
                if tensor.shape != (results[name] or [tensor])[0].shape:
                    raise self._uneven(
                        int(indices[number]), tuple(tensor.shape), tuple(results[name][0].shape)
                    )
                results[name].append(tensor)
            watch.mark("transform")
        stacked = {name: torch.stack(tensors) for name, tensors in results.items()}
        watch.mark("collate")
        return stacked

    def _change(self, images: dict[str, np.ndarray], index: int, seed: int | None) -> Batch:
        """The function's result for one record; whatever it raises becomes one line that names the record."""
        assert self.function is not None
        try:
            found = self.function(dict(images), seed)
            if found.keys() != images.keys():
                raise ValueError(f"gave {sorted(found)}, was given {sorted(images)}")
            return {name: _chw(np.asarray(image)) for name, image in found.items()}
        except PacelineError:
            raise
        except (Exception, SystemExit) as error:
            record, fix = (
                self.store.name(index),
                "mend the function, or see it with debug=trace workers.num=0",
            )
            fault = user_error(error, about=record, fix=fix, kind=UserRecordError)
            if fault is not None:
                raise fault from error
            raise DataError(
                120, record, f"the transform failed on it ({plain(error)})", fix
            ) from error


def check_crcs(store: RecordStore, indices: Tensor, records: Records) -> None:
    """DataError D119 where records just read are not what was packed."""
    bad = store.damaged(indices, records)
    if bad:
        more = f", and {len(bad) - 1} more of its batch" if len(bad) > 1 else ""
        fix = "'paceline verify' lists all; pack it again"
        raise DataError(
            119, store.name(bad[0]), f"its bytes are not what was packed (CRC32 differs{more})", fix
        )


def _chw(image: np.ndarray) -> Tensor:
    return torch.from_numpy(
        np.ascontiguousarray(image.transpose(2, 0, 1) if image.ndim == 3 else image)
    )


def plain(error: BaseException) -> str:
    """An exception's kind and words in at most 300 characters, also where its own ``__str__`` fails."""
    return f"{type(error).__name__}: {words_of(error)}"
