"""Read one batch of a store: gather, decode, transform.

A reader is picklable, so any kind of worker can run it, and works in slices, so that threads share
a batch. It reports records that took many times as long as usual ones, unless they are only copied.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.batch import Batch
from framework.contracts.data import KnowsLabels, RecordFunction, SourceContext
from framework.contracts.records import Placed, Ragged, Records, RecordStore, joined
from framework.data import fields, pictures
from framework.data.pictures import Slice, nothing_yet
from framework.errors import DataError, PacelineError, UserRecordError, words_of
from framework.measure.clock import Stopwatch
from framework.media.scale import LEFT, LINEAR, read_headers, scale_into
from framework.order.draws import ON_HOST, draws, record_seeds
from framework.system.memory import pins_here
from framework.system.user_code import user_error

MUCH = 8  # a slow record takes so many times as long as the usual one, and at least
LEAST_S = 5e-3  # this long: a thread that loses its core for a moment looks slow, too
CAUTION = 1.1  # the factor by which a slice changes what counts as usual
SAMPLED = 16  # records that show the formats of a store's images
ONE_SIZE = "let the function return one size, in validation too: transform.evaluation=true"


class Request(NamedTuple):
    """One batch to read."""

    epoch: int
    indices: Tensor  # the records: int64 [B]
    training: bool  # whether the transform draws random numbers
    verify: bool = False  # whether to compare records with their CRC32
    keys: Tensor | None = None  # what random changes depend on, as ``Share.keys``

    def keys_of(self, start: int, stop: int) -> Tensor:
        """Return what the random changes of records ``start`` to ``stop`` depend on: int64 [n]."""
        return (self.indices if self.keys is None else self.keys)[start:stop]


class SlowRead(NamedTuple):
    """A record that took many times as long as the usual one."""

    number: int  # in the data set
    seconds: float
    size_bytes: int  # 0 if it is not known


class Work(NamedTuple):
    """A batch that is being read. Threads may fill slices of it at the same time."""

    request: Request
    parts: dict[int, Any]  # what the slices hold, by their start
    slices_s: list[dict[str, float]]  # seconds per stage, of each slice and of finishing
    slow: list[SlowRead]
    images: dict[str, Tensor]  # the memory of image fields, if their size is known
    numbers: Tensor | None = None  # the transform's draws, float32 [B, num_draws], if it has some


class Timed(NamedTuple):
    """A batch or a slice of one, the seconds per stage it took, and its slow records."""

    batch: Any
    slices_s: list[dict[str, float]]
    slow: Sequence[SlowRead] = ()


class Reader:
    """What workers run: it reads one batch, whole or in slices. It is picklable.

    A call reads a batch in this thread, and ``timed`` also measures the stages. Or ``begin``
    returns work, of which several threads ``fill`` slices, records ``start`` to ``stop``, before
    ``finish`` returns the batch. ``check`` raises DataError D117 if a file was replaced or
    rewritten since it was first opened.
    """

    decodes: bool = True  # whether reading costs more than copying, and is worth a pool of threads

    def __call__(self, request: Request) -> Batch:
        return self.timed(request).batch

    def timed(self, request: Request) -> Timed:
        work = self.begin(request)
        self.fill(work, 0, len(request.indices))
        return Timed(self.finish(work), work.slices_s, work.slow)

    def begin(self, request: Request) -> Work:
        return Work(request, {}, [], [], {})

    def fill(self, work: Work, start: int, stop: int) -> None:
        raise NotImplementedError

    def finish(self, work: Work) -> Batch:
        raise NotImplementedError

    def check(self) -> None:
        pass

    def name(self, index: int) -> str:
        """Return the name of a record for messages."""
        raise NotImplementedError


@final
class BatchReader(Reader):
    """Reads batches of a store, each with ``index``.

    Image fields become uint8 [B, C, H, W], and videos uint8 [B, T, C, H, W]. With ``collate=list``,
    those without a size of the transform become a list of B tensors. If nothing is changed,
    ``locked`` reads in threads that feed a GPU. C199, C262 for fields that the options do not suit.
    """

    def __init__(
        self,
        store: RecordStore,
        context: SourceContext,
        locked: Callable[[Tensor], Records] | None = None,
    ) -> None:
        manifest = store.manifest
        fields.check_fields(manifest, context)
        self.store = store
        self._locked = locked
        self.transform = transform = context.transform
        self.seed = context.seed
        self.collate = context.collate
        self._memory = pictures.BatchMemory()
        self._usual = Usual()
        sampled = list(manifest.gray.values()) if store.samples_colors else ()
        self.pictures = pictures.Pictures(store, context, sampled)
        self.function: RecordFunction | None = transform.function
        if manifest.label_maps and isinstance(self.function, KnowsLabels):
            self.function = self.function.with_labels(manifest.label_maps)
        # also what the transform's function changes
        self.cut = fields.cut_fields(manifest, transform)
        self.arrays = {name for name, own in self.cut.items() if not fields.is_cut(own, transform)}
        # Raw fields of which only a window is used need no copy first.
        self.views = [name for name, own in self.cut.items() if own.encoding == "raw"]
        every = manifest.fields.items()
        self.ragged = {name: own for name, own in every if own.encoding == "ragged"}
        self.sounds = [name for name, own in self.ragged.items() if own.kind == "audio"]
        self.videos = {name: own for name, own in every if own.kind == "video"}
        self.padded: dict[str, str] = {}  # the names of the lengths of padded arrays, by field
        for name, own in self.ragged.items():
            length = fields.length_name(name, own, self.collate)
            is_window = name in self.sounds and transform.samples > 0  # of one length
            if length is not None and not is_window:
                self.padded[name] = length
        moves = transform.size is not None or transform.num_draws > 0
        self.followers = fields.followers(manifest) if moves else {}
        self.decodes = bool(self.cut or self.sounds or self.videos)
        self.changed = bool(self.cut or self.ragged or self.videos)  # not as stored
        # Records are measured one by one if they are decoded, or changed in Python.
        are_files = any(own.encoding == "image" for own in self.cut.values())
        self._measures = are_files or bool(self.videos) or self.function is not None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_locked": None}  # workers feed no GPU

    def decodes_in_python(self) -> bool:
        """Return whether C leaves most images of a field to Python, as far as a sample shows."""
        files = [name for name, own in self.cut.items() if own.encoding == "image"]
        count = self.store.manifest.num_records
        if not files or not count:
            return False
        records = self.store.read(torch.arange(0, count, -(-count // SAMPLED)))
        return any(2 * read_headers(records[name])[:, LEFT].mean() > 1 for name in files)

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
        return super().timed(request)

    def begin(self, request: Request) -> Work:
        images: dict[str, Tensor] = {}
        size = self.transform.size
        if size is not None and self.function is None:
            count = len(request.indices)
            shapes: dict[str, tuple[int, ...]] = {
                name: (count, own.channels or 3, *size) for name, own in self.cut.items()
            }
            for name, own in self.videos.items():
                shapes[name] = (count, self.transform.num_frames, own.shape[3] or 3, *size)
            for name, shape in shapes.items():
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
            watch.mark("transform")
        if self.cut and self.function is not None:
            filled |= self._by_function(self.function, records, request, part)
        else:
            for name, own in self.cut.items():
                filled[name] = self.pictures.cut(name, own, records[name], part, outs.get(name))
        for name, own in self.videos.items():
            filled[name] = self.pictures.clips(name, own, records[name], part, outs.get(name))
        filled |= self.moved_with_images(records, indices, numbers, part.windows)
        for name in self.sounds:
            how = indices, self.transform, numbers
            filled[name] = fields.samples_of(self.store, records[name], *how)
        if self.sounds:
            watch.mark("decode")
        if self._measures:
            files = [values for values in records.values() if isinstance(values, list | Placed)]

            def size_bytes(place: int) -> int:
                return sum(len(values[place]) for values in files)

            work.slow.extend(self._usual.slow(indices, seconds.tolist(), size_bytes))
        work.parts[start] = filled
        work.slices_s.append(watch.stages_s)

    def finish(self, work: Work) -> Batch:
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

    def collated(self, name: str, values: Ragged | Tensor, indices: Tensor) -> Batch:
        """Return what the batch has of a ragged field. DataError D121 for a damaged text."""
        if isinstance(values, Tensor):  # windows of sounds
            return {name: values}
        try:
            return fields.collated(name, self.ragged[name], values, self.collate)
        except UnicodeDecodeError as error:
            where = f"{self.store.name(int(indices[0]))} and the rest of its batch"
            what = f"{name} holds a text that is not UTF-8"
            raise DataError(121, where, what, "pack it again, or as bytes") from error

    def moved_with_images(
        self,
        records: Records,
        indices: Tensor,
        numbers: Tensor | None,
        known: Mapping[str, Tensor] | None = None,
    ) -> Records:
        """Return the boxes and points in the pixels of the images that the transform makes.

        ``known`` has windows of image fields, by name.
        """
        if not self.followers:
            return {}
        every = self.store.manifest.fields
        image = next(name for name, own in every.items() if own.kind in fields.PICTURES)
        windows = (known or {}).get(image)
        if windows is None:
            sizes = self.pictures.opened(every[image], records[image], indices).sizes
            windows = self.transform.windows(sizes, numbers)
        return {
            name: fields.moved(own, records[name], windows, self.transform.size)
            for name, own in self.followers.items()
        }

    def _by_function(
        self, function: RecordFunction, records: Records, request: Request, part: Slice
    ) -> Batch:
        given: dict[str, Iterator[np.ndarray]] = {}
        for name, own in self.cut.items():
            if name in self.arrays:
                given[name] = map(np.array, records[name])
            else:
                given[name] = self.pictures.for_function(name, own, records[name], part)
        seeds: list[int | None] = [None] * len(part.indices)
        if request.training:
            seeds = record_seeds(part.keys, self.seed, request.epoch).tolist()
        lists: Batch = {name: [] for name in given}
        stacked: dict[str, np.ndarray] = {}
        for place, (index, seed) in enumerate(zip(part.indices.tolist(), seeds, strict=True)):
            images = {name: next(images) for name, images in given.items()}
            try:
                changed = function(dict(images), seed)
                if changed.keys() != images.keys():
                    raise ValueError(f"gave {sorted(changed)}, was given {sorted(images)}")
                results = {name: np.asarray(image) for name, image in changed.items()}
                for name, image in results.items():
                    if image.ndim == 3 and name not in self.arrays:
                        results[name] = image.transpose(2, 0, 1)
            except PacelineError:
                raise
            except (Exception, SystemExit) as error:
                record = self.store.name(index)
                fix = "correct the function, or see it with debug=trace workers.num=0"
                fault = user_error(error, about=record, fix=fix, kind=UserRecordError)
                what = f"the transform failed on it ({plain(error)})"
                raise fault or DataError(120, record, what, fix) from error
            part.seconds[place] += part.watch.mark("transform")
            for name, planes in results.items():
                if self.collate == "list":
                    out = np.empty(planes.shape, planes.dtype)
                    lists[name].append(torch.from_numpy(out))
                else:
                    if name not in stacked:
                        stacked[name] = np.empty((len(part.indices), *planes.shape), planes.dtype)
                    out = stacked[name][place]
                    if planes.shape != out.shape:
                        uneven = "the function made", planes.shape, out.shape, ONE_SIZE
                        raise pictures.uneven(self.store, index, *uneven)
                if planes.dtype == out.dtype == np.uint8 and planes.ndim == 3:
                    scale_into(planes.transpose(1, 2, 0), LINEAR, 0, out)
                else:
                    np.copyto(out, planes)
            part.watch.mark("collate")
        if self.collate == "list":
            return lists
        return {name: torch.from_numpy(values) for name, values in stacked.items()}


def check_crcs(store: RecordStore, indices: Tensor, records: Records) -> None:
    """Raise DataError D119 if records just read are not what was packed."""
    if bad := store.damaged(indices, records):
        more = f", and {len(bad) - 1} more of its batch" if len(bad) > 1 else ""
        what = f"its bytes are not what was packed (CRC32 differs{more})"
        raise DataError(119, store.name(bad[0]), what, "'paceline verify' lists all; pack it again")


@final
class Usual:
    """The seconds that a usual record takes: a running median of the medians of slices.

    Several threads may use one. A change that gets lost does no harm.
    """

    seconds = 0.0
    _has_begun = False

    def slow(
        self, indices: Any, seconds: Sequence[float], size_bytes: Callable[[int], int]
    ) -> list[SlowRead]:
        """Return the slow ones of a slice's records, ``indices``, of which each took ``seconds``.

        ``size_bytes`` returns the bytes of a record by its place in the slice.
        """
        if not self._has_begun:  # the first record of a process loads libraries
            self._has_begun = True
            seconds = [0.0, *seconds[1:]]
        if sum(seconds) < LEAST_S:
            return []
        median = sorted(seconds)[(len(seconds) - 1) // 2]
        usual = self.seconds or median
        self.seconds = usual = min(max(median, usual / CAUTION), usual * CAUTION)
        limit = max(LEAST_S, MUCH * usual)
        return [
            SlowRead(int(indices[place]), value, size_bytes(place))
            for place, value in enumerate(seconds)
            if value > limit
        ]


def plain(error: BaseException) -> str:
    """Return an exception's kind and words, even if its own ``__str__`` fails."""
    return f"{type(error).__name__}: {words_of(error)}"
