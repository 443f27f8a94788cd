"""Read one batch of a store: gather, decode, transform.

A reader is picklable, so any kind of worker can run it. It works in slices, so that several threads
can share a batch.
"""

from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.batch import Batch
from framework.contracts.data import (
    KnowsLabels,
    RecordFunction,
    SourceContext,
)
from framework.contracts.records import (
    Placed,
    Ragged,
    Records,
    RecordStore,
    joined,
)
from framework.data.fields import (
    PICTURES,
    check_fields,
    collated,
    cut_fields,
    followers,
    is_cut,
    length_name,
    moved,
    samples_of,
)
from framework.data.pictures import (
    BatchMemory,
    Pictures,
    Slice,
    decodes_in_python,
    nothing_yet,
    uneven,
)
from framework.data.requests import Request, Timed, Usual, Work, plain
from framework.errors import DataError, PacelineError, UserRecordError
from framework.measure.clock import Stopwatch
from framework.media.scale import scale_into
from framework.order.draws import ON_HOST, draws, record_seeds
from framework.system.memory import pins_here
from framework.system.user_code import user_error

NOTHING_KNOWN: Mapping[str, Tensor] = {}
ONE_SIZE = "let the function return one size, in validation too: transform.evaluation=true"


@final
class BatchReader:
    """Reads batches, each with ``index``.

    Image fields become uint8 [B, C, H, W], and videos uint8 [B, T, C, H, W]. With ``collate=list``,
    those without a size of the transform become a list of B tensors. If nothing is changed,
    ``locked`` reads in threads that feed a GPU. ConfigError C199, C262 for a field that cannot be
    put into a batch as the options say.
    """

    def __init__(
        self,
        store: RecordStore,
        context: SourceContext,
        locked: Callable[[Tensor], Records] | None = None,
    ) -> None:
        check_fields(store.manifest, context)
        self.store = store
        self._locked = locked
        self.transform = transform = context.transform
        self.seed = context.seed
        self.collate = context.collate
        self._memory = BatchMemory()
        self._usual = Usual()
        manifest = store.manifest
        fields = manifest.fields.items()
        sampled = list(manifest.gray.values()) if store.samples_colors else ()
        self.pictures = Pictures(store, context, sampled)
        self.function: RecordFunction | None = transform.function
        if manifest.label_maps and isinstance(self.function, KnowsLabels):
            self.function = self.function.with_labels(manifest.label_maps)
        self.cut = cut_fields(manifest, transform)  # also what the transform's function changes
        self.arrays = {name for name, own in self.cut.items() if not is_cut(own, transform)}
        # Raw fields of which only a window is used need no copy first.
        self.views = [name for name, own in self.cut.items() if own.encoding == "raw"]
        self.ragged = {name: own for name, own in fields if own.encoding == "ragged"}
        self.sounds = [name for name, own in self.ragged.items() if own.kind == "audio"]
        self.videos = {name: own for name, own in fields if own.kind == "video"}
        self.padded: dict[str, str] = {}  # the names of the lengths of padded arrays, by field
        for name, own in self.ragged.items():
            length = length_name(name, own, self.collate)
            is_window = name in self.sounds and transform.samples > 0  # of one length
            if length is not None and not is_window:
                self.padded[name] = length
        moves = transform.size is not None or transform.num_draws > 0
        self.followers = followers(manifest) if moves else {}
        # Such reading costs more than copying, and so is worth a pool of threads.
        self.decodes = bool(self.cut or self.sounds or self.videos)
        self.changed = bool(self.cut or self.ragged or self.videos)  # beside what the store gives
        # Records are measured one by one if they are decoded, or changed in Python.
        are_files = any(own.encoding == "image" for own in self.cut.values())
        self._measures = are_files or bool(self.videos) or self.function is not None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_locked": None}  # workers feed no GPU

    def decodes_in_python(self) -> bool:
        """Return whether C leaves most images of a field to Python, as far as a sample shows."""
        files = [name for name, field in self.cut.items() if field.encoding == "image"]
        return any(decodes_in_python(self.store, name) for name in files)

    def __call__(self, request: Request) -> Batch:
        # the shortest way: small records take less time than the rest of this class
        if not self.changed and not request.verify:
            read = self.store.read
            if self._locked is not None and pins_here():
                read = self._locked
            return {"index": request.indices, **read(request.indices)}
        return self.timed(request).batch

    def timed(self, request: Request) -> Timed:
        if not self.changed and not request.verify:
            start = perf_counter()
            return Timed(self(request), [{"read": perf_counter() - start}])
        work = self.begin(request)
        self.fill(work, 0, len(request.indices))
        return Timed(self.finish(work), work.slices_s, work.slow)

    def begin(self, request: Request) -> Work:
        """Return a batch with memory for the images whose size is known."""
        images: dict[str, Tensor] = {}
        size = self.transform.size
        if size is not None and self.function is None:
            shapes: dict[str, tuple[int, ...]] = {
                name: (field.channels or 3, *size) for name, field in self.cut.items()
            }
            for name, field in self.videos.items():
                shapes[name] = (self.transform.num_frames, field.shape[3] or 3, *size)
            for name, shape in shapes.items():
                shape = len(request.indices), *shape  # noqa: PLW2901
                if pins_here():  # a GPU copies it whole; torch pools page-locked memory
                    images[name] = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
                else:
                    images[name] = self._memory.take(*shape)
        return Work(request, {}, [], [], images, self.numbers(request))

    def fill(self, work: Work, start: int, stop: int) -> None:
        """Read records ``start``..``stop`` of the batch. Threads may fill slices concurrently."""
        watch = Stopwatch()
        request = work.request
        indices, keys, numbers, outs = request.indices, request.keys, work.numbers, work.images
        if start > 0 or stop < len(indices):  # each view costs Python's lock
            indices = indices[start:stop]
            keys = keys if keys is None else keys[start:stop]
            numbers = numbers if numbers is None else numbers[start:stop]
            outs = {name: image[start:stop] for name, image in outs.items()}
        seconds = nothing_yet(len(indices))
        if self._measures and self.store.times_records:
            records = self.store.read_timed(indices, seconds)
        else:
            records = self.store.read(indices, self.views)
        if request.verify:
            check_crcs(self.store, indices, records)
        watch.mark("read")
        part = Slice(indices, indices if keys is None else keys, numbers, watch, seconds, {})
        filled = dict(records)
        if self.cut:
            filled |= self._images(records, request, part, outs)
        for name, field in self.videos.items():
            filled[name] = self.pictures.clips(name, field, records[name], part, outs.get(name))
        filled |= self.followed(records, indices, part.numbers, part.windows)
        if self.sounds:
            filled |= self.heard(records, indices, part.numbers)
            watch.mark("decode")
        if self._measures:
            files = [own for own in records.values() if isinstance(own, list | Placed)]

            def size_bytes(place: int) -> int:
                return sum(len(values[place]) for values in files)

            work.slow.extend(self._usual.slow(indices, seconds.tolist(), size_bytes))
        work.parts[start] = filled
        work.slices_s.append(watch.stages_s)

    def finish(self, work: Work) -> Batch:
        """Return the batch, once all its slices are filled."""
        watch = Stopwatch()
        indices = work.request.indices
        parts = [work.parts[start] for start in sorted(work.parts)]
        batch: Batch = {"index": indices}
        for name in self.store.manifest.fields:
            if name in work.images:
                batch[name] = work.images[name]
                continue
            values = [part[name] for part in parts]
            if name in self.ragged:
                batch |= self.collated(name, joined(values), indices)
                continue
            if isinstance(values[0], Tensor):
                start = 0
                for value in values:
                    if value.shape[1:] != values[0].shape[1:]:
                        shapes = value.shape[1:], values[0].shape[1:]
                        raise self.pictures.uneven_images(int(indices[start]), *shapes)
                    start += len(value)
            batch[name] = joined(values)
        watch.mark("collate")
        work.slices_s.append(watch.stages_s)
        return batch

    def check(self) -> None:
        self.store.check()

    def name(self, index: int) -> str:
        return self.store.name(index)

    def numbers(self, request: Request) -> Tensor | None:
        """Return the transform's draws, float32 [B, num_draws]; None if nothing needs them."""
        if not request.training or not self.decodes:
            return None
        keys = request.indices if request.keys is None else request.keys
        return draws(keys, self.seed, request.epoch, self.transform.num_draws, ON_HOST)

    def label_map(self, name: str, values: Any, indices: Tensor, numbers: Tensor | None) -> Tensor:
        """Cut the label maps that the store gave for ``indices``: uint8 [B, 1, h, w]."""
        part = Slice(indices, indices, numbers, Stopwatch(), nothing_yet(len(indices)), {})
        return self.pictures.stacked(name, self.store.manifest.fields[name], values, part)

    def heard(self, records: Records, indices: Tensor, numbers: Tensor | None) -> Records:
        """Return the samples of the sounds that the store gave for ``indices``."""
        return {
            name: samples_of(self.store, records[name], indices, self.transform, numbers)
            for name in self.sounds
        }

    def collated(self, name: str, values: Ragged | Tensor, indices: Tensor) -> Batch:
        """Return what the batch has of a ragged field. DataError D121 for a damaged text."""
        if isinstance(values, Tensor):  # windows of sounds
            return {name: values}
        try:
            return collated(name, self.ragged[name], values, self.collate)
        except UnicodeDecodeError as error:
            where = f"{self.store.name(int(indices[0]))} and the rest of its batch"
            what = f"{name} holds a text that is not UTF-8"
            raise DataError(121, where, what, "pack it again, or as bytes") from error

    def followed(
        self,
        records: Records,
        indices: Tensor,
        numbers: Tensor | None,
        known: Mapping[str, Tensor] = NOTHING_KNOWN,
    ) -> Records:
        """Return the boxes and points in the pixels of the images that the transform makes.

        ``known`` has windows of image fields, by name.
        """
        if not self.followers:
            return {}
        fields = self.store.manifest.fields
        image = next(name for name, field in fields.items() if field.kind in PICTURES)
        windows = known.get(image)
        if windows is None:
            sizes = self.pictures.sizes(fields[image], records[image], indices)
            windows = self.transform.windows(sizes, numbers)
        return {
            name: moved(field, records[name], windows, self.transform.size)
            for name, field in self.followers.items()
        }

    def _images(
        self, records: Records, request: Request, part: Slice, outs: dict[str, Tensor]
    ) -> Batch:
        """Return images, or what a function makes of them: [B, C, h, w], or a list of B."""
        part.watch.mark("transform")
        pictures, function = self.pictures, self.function
        if function is None:
            return {
                name: pictures.cut(name, own, records[name], part, outs.get(name))
                for name, own in self.cut.items()
            }
        given: dict[str, Iterator[np.ndarray]] = {}
        for name, own in self.cut.items():
            if name in self.arrays:
                given[name] = map(np.array, records[name])
            else:
                given[name] = pictures.for_function(name, own, records[name], part)
        seeds: list[int | None] = [None] * len(part.indices)
        if request.training:
            seeds = record_seeds(part.keys, self.seed, request.epoch).tolist()
        lists: Batch = {name: [] for name in given}
        stacked: dict[str, np.ndarray] = {}
        for place, (index, seed) in enumerate(zip(part.indices.tolist(), seeds, strict=True)):
            images = {name: next(images) for name, images in given.items()}
            changed = self._changed_record(function, images, index, seed)
            part.seconds[place] += part.watch.mark("transform")
            for name, planes in changed.items():
                if self.collate == "list":
                    out = np.empty(planes.shape, planes.dtype)
                    lists[name].append(torch.from_numpy(out))
                else:
                    if name not in stacked:
                        shape = (len(part.indices), *planes.shape)
                        stacked[name] = np.empty(shape, planes.dtype)
                    out = stacked[name][place]
                    if planes.shape != out.shape:
                        shapes = planes.shape, out.shape
                        raise uneven(self.store, index, "the function made", *shapes, ONE_SIZE)
                if planes.dtype == out.dtype == np.uint8 and planes.ndim == 3:
                    scale_into(planes.transpose(1, 2, 0), False, 0, out)
                else:
                    np.copyto(out, planes)
            part.watch.mark("collate")
        if self.collate == "list":
            return lists
        return {name: torch.from_numpy(values) for name, values in stacked.items()}

    def _changed_record(
        self, function: RecordFunction, images: dict[str, np.ndarray], index: int, seed: int | None
    ) -> dict[str, np.ndarray]:
        """Return the function's result for a record, [C, h, w]. Its errors name the record."""
        try:
            changed = function(dict(images), seed)
            if changed.keys() != images.keys():
                raise ValueError(f"gave {sorted(changed)}, was given {sorted(images)}")
            planes = {name: np.asarray(image) for name, image in changed.items()}
            for name, image in planes.items():
                if image.ndim == 3 and name not in self.arrays:
                    planes[name] = image.transpose(2, 0, 1)
        except PacelineError:
            raise
        except (Exception, SystemExit) as error:
            record = self.store.name(index)
            fix = "correct the function, or see it with debug=trace workers.num=0"
            fault = user_error(error, about=record, fix=fix, kind=UserRecordError)
            what = f"the transform failed on it ({plain(error)})"
            raise fault or DataError(120, record, what, fix) from error
        return planes


def check_crcs(store: RecordStore, indices: Tensor, records: Records) -> None:
    """Raise DataError D119 if records just read are not what was packed."""
    bad = store.damaged(indices, records)
    if bad:
        more = ""
        if len(bad) > 1:
            more = f", and {len(bad) - 1} more of its batch"
        what = f"its bytes are not what was packed (CRC32 differs{more})"
        fix = "'paceline verify' lists all; pack it again"
        raise DataError(119, store.name(bad[0]), what, fix)
