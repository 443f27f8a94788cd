"""Read one batch: gather, decode, transform.

A reader is picklable, so any kind of worker can run it. It works in slices, so that several threads
can share a batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from time import perf_counter
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.batch import Batch
from framework.contracts.data import (
    CutsSounds,
    CutsVideos,
    KnowsLabels,
    RecordFunction,
    SourceContext,
)
from framework.contracts.records import (
    Field,
    Placed,
    Ragged,
    ReadsOneByOne,
    Records,
    RecordStore,
    SamplesColors,
)
from framework.data.clips import clip_frames
from framework.data.collate import collated, length_name
from framework.data.cut_fields import (
    PICTURES,
    check_fields,
    cut_fields,
    followers,
    is_cut,
    moved,
)
from framework.data.ledger import Usual
from framework.data.pictures import BatchMemory, Opened, Pictures, decodes_in_python, uneven
from framework.data.record_function import FunctionOfRecords
from framework.data.requests import ReadWork, Request, Slice, Timed, nothing_yet
from framework.data.sounds import heard
from framework.errors import DataError
from framework.measure.stopwatch import Stopwatch
from framework.order.draws import ON_HOST, draws
from framework.store.gather import joined
from framework.system.page_locked import pins_here

AT_ONCE = 8  # images in memory before a transform's function: photographs take megabytes
NOTHING_KNOWN: Mapping[str, Tensor] = {}


@final
class BatchReader:
    """Reads batches, each with ``index``.

    Image fields become uint8 [B, C, H, W], and videos uint8 [B, T, C, H, W]. With ``collate=list``,
    those without a size of the transform become a list of B tensors.

    If nothing is changed, ``locked`` reads in threads that feed a GPU.

    Raises:
        ConfigError: C199, C262 for a field that cannot be put into a batch as the options say.
    """

    def __init__(
        self,
        store: RecordStore,
        context: SourceContext,
        locked: Callable[[Tensor], Records] | None = None,
    ) -> None:
        self.store = store
        self._locked = locked
        self.transform = context.transform
        self._transform_key = context.transform_key
        self.seed = context.seed
        self.collate = context.collate
        self._memory = BatchMemory()
        self._usual = Usual()
        self.pictures = Pictures(store, context.transform, self.sampled_gray)
        check_fields(store.manifest, context)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_locked": None}  # workers feed no GPU

    @cached_property
    def function(self) -> RecordFunction | None:
        """The transform's function, which knows which fields are label maps."""
        function = self.transform.function
        labels = self.store.manifest.label_maps
        if labels and isinstance(function, KnowsLabels):
            return function.with_labels(labels)
        return function

    @cached_property
    def cut(self) -> dict[str, Field]:
        return cut_fields(self.store.manifest, self.transform)

    @cached_property
    def arrays(self) -> set[str]:
        """The names in ``cut`` that are no images."""
        return {name for name, field in self.cut.items() if not is_cut(field, self.transform)}

    @cached_property
    def sampled_gray(self) -> Sequence[Field]:
        """The fields that are gray because a sample of their images is."""
        if isinstance(self.store, SamplesColors) and self.store.samples_colors:
            return list(self.store.manifest.gray.values())
        return ()

    @cached_property
    def ragged(self) -> dict[str, Field]:
        fields = self.store.manifest.fields
        return {name: field for name, field in fields.items() if field.encoding == "ragged"}

    @cached_property
    def sounds(self) -> list[str]:
        return [name for name, field in self.ragged.items() if field.kind == "audio"]

    @cached_property
    def videos(self) -> dict[str, Field]:
        fields = self.store.manifest.fields
        return {name: field for name, field in fields.items() if field.kind == "video"}

    @cached_property
    def padded(self) -> dict[str, str]:
        """The names of the lengths of padded arrays, by field."""
        ragged = dict(self.ragged)
        if isinstance(self.transform, CutsSounds):  # windows have one length
            ragged = {name: field for name, field in ragged.items() if name not in self.sounds}
        names = {name: length_name(name, field, self.collate) for name, field in ragged.items()}
        return {name: length for name, length in names.items() if length is not None}

    @cached_property
    def followers(self) -> dict[str, Field]:
        """Boxes and points that follow their image, if the transform changes it."""
        if self.transform.size is None and self.transform.num_draws == 0:
            return {}
        return followers(self.store.manifest)

    @cached_property
    def views(self) -> list[str]:
        """Raw fields of which only a window is used, so that they need no copy first."""
        return [name for name, field in self.cut.items() if field.encoding == "raw"]

    @property
    def decodes(self) -> bool:
        """Whether reading costs more than copying, and so is worth a pool of threads."""
        return bool(self.cut or self.sounds or self.videos)

    def decodes_in_python(self) -> bool:
        """Return whether C leaves most images of a field to Python, as far as a sample shows."""
        files = [name for name, field in self.cut.items() if field.encoding == "image"]
        return any(decodes_in_python(self.store, name) for name in files)

    @cached_property
    def measures_records(self) -> bool:
        """Whether records are measured one by one: those that are decoded, or changed in Python."""
        are_files = any(field.encoding == "image" for field in self.cut.values())
        return are_files or bool(self.videos) or self.function is not None

    @cached_property
    def _one_by_one(self) -> ReadsOneByOne | None:
        if self.measures_records and isinstance(self.store, ReadsOneByOne):
            return self.store
        return None

    @cached_property
    def changed(self) -> bool:
        """Whether a batch differs from what the store gives."""
        return bool(self.cut or self.ragged or self.videos)

    def __call__(self, request: Request) -> Batch:
        # the shortest way: small records take less time than the rest of this class
        if not self.changed and not request.verify:
            read = self.store.read
            if self._locked is not None and pins_here():
                read = self._locked
            return {"index": request.indices, **read(request.indices)}
        return self._read(request)[0]

    def timed(self, request: Request) -> Timed:
        """Read the batch in this thread."""
        if self.changed:
            return self._read(request)
        start = perf_counter()
        return Timed(self(request), [{"read": perf_counter() - start}])

    def _read(self, request: Request) -> Timed:
        work = self.begin(request)
        self.fill(work, 0, len(request.indices))
        return Timed(self.finish(work), work.slices_s, work.slow)

    def begin(self, request: Request) -> ReadWork:
        """Return a batch with memory for the images whose size is known."""
        images: dict[str, Tensor] = {}
        size = self.transform.size
        if size is not None and self.function is None:
            for name, field in self.cut.items():
                images[name] = self._memory_of(len(request.indices), field.channels or 3, *size)
            for name, field in self.videos.items():
                shape = (self._num_frames, field.shape[3] or 3, *size)
                images[name] = self._memory_of(len(request.indices), *shape)
        numbers = self.numbers(request)
        return ReadWork(request, images, {}, [], [], numbers)

    def _memory_of(self, *shape: int) -> Tensor:
        """Return uint8 of this shape: page-locked where batches feed a GPU, which copies it whole.

        torch pools page-locked memory.
        """
        if pins_here():
            return torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        return self._memory.take(*shape)

    def fill(self, work: ReadWork, start: int, stop: int) -> None:
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
        if self._one_by_one is not None:
            records = self._one_by_one.read_timed(indices, seconds)
        else:
            records = self.store.read(indices, self.views)
        if request.verify:
            check_crcs(self.store, indices, records)
        watch.mark("read")
        part = Slice(indices, indices if keys is None else keys, numbers, watch, seconds, {})
        images = self._images(records, request, part, outs) | self._clips(records, part, outs)
        followed = self.followed(records, indices, part.numbers, part.windows)
        sounds = self.heard(records, indices, part.numbers)
        if sounds:
            watch.mark("decode")
        if self.measures_records:
            files = [own for own in records.values() if isinstance(own, list | Placed)]
            slow = self._usual.slow(
                indices,
                seconds.tolist(),
                lambda place: sum(len(values[place]) for values in files),
            )
            work.slow.extend(slow)
        work.parts[start] = {**records, **images, **followed, **sounds}
        work.slices_s.append(watch.stages_s)

    def finish(self, work: ReadWork) -> Batch:
        """Return the batch, once all its slices are filled."""
        watch = Stopwatch()
        indices = work.request.indices
        parts = [work.parts[start] for start in sorted(work.parts)]
        batch: Batch = {"index": indices}
        for name in self.store.manifest.fields:
            if name in work.images:
                batch[name] = work.images[name]
            elif name in self.ragged:
                batch |= self.collated(name, joined([part[name] for part in parts]), indices)
            else:
                batch[name] = self._joined([part[name] for part in parts], indices)
        watch.mark("collate")
        work.slices_s.append(watch.stages_s)
        return batch

    def timed_slice(self, request: Request) -> Timed:
        """Read some records of a batch in this thread, for ``join``."""
        work = self.begin(request)
        self.fill(work, 0, len(request.indices))
        return Timed(work.parts[0], work.slices_s, work.slow)

    def join(self, request: Request, slices: Sequence[Timed]) -> Timed:
        """Return the batch of ``request``, whose slices are given in their order."""
        parts = {number: part.batch for number, part in enumerate(slices)}
        slices_s = [stages_s for part in slices for stages_s in part.slices_s]
        work = ReadWork(request, {}, parts, slices_s, [])
        slow = [record for part in slices for record in part.slow]
        return Timed(self.finish(work), work.slices_s, slow)

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
        field = self.store.manifest.fields[name]
        seconds = nothing_yet(len(indices))
        part = Slice(indices, indices, numbers, Stopwatch(), seconds, {})
        return self._stacked(name, field, values, part, None)

    def heard(self, records: Records, indices: Tensor, numbers: Tensor | None) -> Records:
        """Return the samples of the sounds that the store gave for ``indices``."""
        return {
            name: heard(self.store, records[name], indices, self.transform, numbers)
            for name in self.sounds
        }

    def collated(self, name: str, values: Ragged | Tensor, indices: Tensor) -> Batch:
        """Return what the batch has of a ragged field. DataError D121 for a damaged text."""
        if isinstance(values, Tensor):  # windows of sounds
            return {name: values}
        field = self.ragged[name]
        try:
            return collated(name, field, values, self.collate)
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
            sizes = self.sizes(fields[image], records[image], indices)
            windows = self.transform.windows(sizes, numbers)
        return {
            name: moved(field, records[name], windows, self.transform.size)
            for name, field in self.followers.items()
        }

    def _joined(self, parts: list[Any], indices: Tensor) -> Any:
        if len(parts) == 1:
            return parts[0]
        if isinstance(parts[0], list):  # ``collate=list``
            return [image for part in parts for image in part]
        shape = parts[0].shape[1:]
        start = 0
        for part in parts:
            if part.shape[1:] != shape:
                raise self._uneven(int(indices[start]), part.shape[1:], shape)
            start += len(part)
        return torch.cat(parts)

    def _images(
        self, records: Records, request: Request, part: Slice, outs: dict[str, Tensor]
    ) -> Batch:
        """Return the fields that are ``cut``: uint8 [B, C, h, w], or the function's results."""
        if not self.cut:
            return {}
        part.watch.mark("transform")
        cut = self.cut.items()
        if self.function is None:
            return {
                name: self._cut(name, own, records[name], part, outs.get(name)) for name, own in cut
            }
        pixels = {
            name: map(np.array, records[name])
            if name in self.arrays
            else self._for_function(name, field, records[name], part)
            for name, field in cut
        }
        return self._change(pixels, request, part)

    @cached_property
    def _change(self) -> FunctionOfRecords:
        assert self.function is not None
        return FunctionOfRecords(self.store, self.function, self.arrays, self.collate, self.seed)

    def _uneven(self, index: int, shape: Sequence[int], other: Sequence[int]) -> DataError:
        key = self._transform_key
        fix = f"set {key}=resize or val_batch_size=1 (batch_size=1), or pack with one size"
        return uneven(self.store, index, "the image is", shape, other, fix)

    @property
    def _num_frames(self) -> int:
        assert isinstance(self.transform, CutsVideos)
        return self.transform.num_frames

    def _clips(self, records: Records, part: Slice, outs: dict[str, Tensor]) -> Batch:
        """Return the clips of videos: uint8 [B, T, C, h, w], or a list as ``_cut`` has it."""
        clips: Batch = {}
        for name in self.videos:
            values = records[name]
            if self.collate == "list" and self.transform.size is None:
                clips[name] = [self._clip(name, *alone, None)[0] for alone in part.alone(values)]
            else:
                clips[name] = self._clip(name, values, part, outs.get(name))
        return clips

    def _clip(self, name: str, values: Any, part: Slice, out: Tensor | None) -> Tensor:
        """Cut the frames of clips as images of which all of a clip have the same draws."""
        assert isinstance(self.transform, CutsVideos)
        frames = clip_frames(self.store, name, values, part.indices, self.transform, part.numbers)
        length = self._num_frames
        numbers = part.numbers
        if numbers is not None:
            numbers = numbers.repeat_interleave(length, 0)
        if out is not None:
            out = out.flatten(0, 1)
        seconds = nothing_yet(len(frames))
        indices, keys = (each.repeat_interleave(length) for each in (part.indices, part.keys))
        flat = Slice(indices, keys, numbers, part.watch, seconds, {})
        images = self._stacked(name, self.videos[name].frame, frames, flat, out)
        for number in range(len(part.seconds)):
            part.seconds[number] += sum(seconds[number * length : (number + 1) * length])
        return images.unflatten(0, (-1, length))

    def _cut(self, name: str, field: Field, values: Any, part: Slice, out: Tensor | None) -> Any:
        """Return the windows of images, stacked; with ``collate=list`` and without a size, a list.

        ``out`` is memory for all of them, if their size is known.
        """
        if self.collate != "list" or self.transform.size is not None:
            return self._stacked(name, field, values, part, out)
        opened, windows = self._opened(name, field, values, part)
        shapes = self.pictures.shapes(field, windows)
        arrays = [np.empty(shape, np.uint8) for shape in shapes]
        self._filled(opened, windows, part, arrays)
        return [torch.from_numpy(array) for array in arrays]

    def _stacked(
        self, name: str, field: Field, values: Any, part: Slice, out: Tensor | None
    ) -> Tensor:
        """Write each image's window to ``out``, or to new memory of the first window's size."""
        opened, windows = self._opened(name, field, values, part)
        if out is None:
            shapes = self.pictures.shapes(field, windows)
            if len(set(shapes)) > 1:
                place = next(place for place, shape in enumerate(shapes) if shape != shapes[0])
                raise self._uneven(int(part.indices[place]), shapes[place], shapes[0])
            out = torch.empty((len(shapes), *shapes[0]), dtype=torch.uint8)
        self._filled(opened, windows, part, out.numpy())
        return out

    def _for_function(
        self, name: str, field: Field, values: Any, part: Slice
    ) -> Iterator[np.ndarray]:
        """Yield windows for the transform's function: scaled and flipped [h, w, C] arrays."""
        for start in range(0, len(part.indices), AT_ONCE):
            few = part.between(start, start + AT_ONCE)
            opened, windows = self._opened(name, field, values[start : start + AT_ONCE], few)
            arrays: list[np.ndarray] = []
            for channels, *size in self.pictures.shapes(field, windows):
                arrays.append(np.empty((*size, channels), np.uint8))
            self._filled(opened, windows, few, arrays, interleaved=True)
            yield from arrays

    def _opened(self, name: str, field: Field, values: Any, part: Slice) -> tuple[Opened, Tensor]:
        """Return images and the transform's windows of them, int64 [B, 5]."""
        opened = self.pictures.open(field, values, part.indices)
        if opened.headers is not None:
            part.watch.mark("decode")
        windows = self.transform.windows(opened.sizes, part.numbers)
        if self.transform.size is None:  # windows decide the memory; others are checked in C
            self.pictures.check_windows(opened.sizes, windows, part.indices)
        part.windows[name] = windows
        part.watch.mark("transform")
        return opened, windows

    def _filled(
        self, opened: Opened, windows: Tensor, part: Slice, arrays: Any, interleaved: bool = False
    ) -> None:
        self.pictures.cut(opened, windows, part, arrays, interleaved)
        part.watch.mark("transform" if opened.headers is None else "decode")

    def sizes(self, field: Field, values: Any, indices: Tensor) -> Tensor:
        """Return height and width of each image that the store gave for ``indices``."""
        return self.pictures.open(field, values, indices).sizes


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
