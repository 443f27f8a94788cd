"""DALI as a Source: ``external_source`` feeds its pipeline the records of a store in our order.

Raw fields pass through, ragged ones beside the pipeline. DALI's operators decode, cut and scale
image fields, on the GPU (``mixed``) if there is one. Label maps are cut by our own reader, since
DALI has no decoder that keeps the indices of a palette. The pipeline runs without DALI's iterator
classes, whose policies drop or repeat the partial last batch.
"""

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing, nullcontext
from functools import cached_property
from itertools import tee
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.batch import Batch
from framework.contracts.data import (
    MIRRORED,
    TURNED,
    UPSIDE_DOWN,
    MicroBatch,
    MicroBatches,
    SourceContext,
    keyed,
    may_turn,
)
from framework.contracts.records import Manifest
from framework.data.collate import with_nested
from framework.data.cut_fields import is_cut
from framework.data.pictures import unreadable
from framework.data.reader import BatchReader, check_crcs
from framework.data.requests import Request
from framework.data.source import store_order
from framework.errors import ConfigError, DataError, ResourceError
from framework.media.decode import decode
from framework.media.header import BadImage
from framework.order.batches import Order
from framework.store.open_store import open_store
from framework.system.extras import pip_install
from framework.system.native import crowded


def dali_source(path: str, prefetch_depth: int, *, context: SourceContext) -> "DALISource":
    """Return a source of the store at ``path`` with a DALI pipeline."""
    return DALISource(path, prefetch_depth, context)


@final
class DALISource:
    """A Source that decodes with DALI. ``prefetch_depth``: batches DALI prepares ahead."""

    graph_refusal = "DALI frees memory in threads of its own, which capturing forbids"

    def __init__(self, path: str, prefetch_depth: int, context: SourceContext) -> None:
        self._dali = _import_dali()
        self.store = open_store(path)
        self.context = context
        self.prefetch_depth = prefetch_depth
        _refuse(context)
        self.order: Order = store_order(self.store, context)
        self._is_verified = False  # whether a pass with ``verify`` has come to its end
        fields = self.store.manifest.fields
        self._names = [name for name, field in fields.items() if field.encoding != "ragged"]
        self._ragged: deque[Batch] = deque()  # of the batches that the pipeline makes
        cut = [name for name, field in fields.items() if is_cut(field, context.transform)]
        self._maps = [name for name in cut if fields[name].kind == "labels"]
        self._cut = [name for name in cut if name not in self._maps]
        self._reader = BatchReader(self.store, context)
        if self._reader.videos:
            where = f"data = dali, video {', '.join(self._reader.videos)}"
            raise ConfigError(174, where, "DALI is not given videos", "choose data=hdf5 or lmdb")
        self._turns: dict[str, deque[Tensor]] = {}  # of the same batches, by field
        self._feed: Iterator[tuple[Any, ...]] = iter(())
        # The records of the same batches, and what DALI was given: it reads that where it lies.
        self._under_way: deque[tuple[Tensor, Any]] = deque()
        self._failure: Exception | None = None  # ended the feed
        self._pipeline: Any = None
        is_gpu = context.device.type == "cuda"
        self._stream = torch.cuda.Stream(context.device) if is_gpu else None

    @property
    def manifest(self) -> Manifest:
        return self.store.manifest

    def batches(self, epoch: int, start: int = 0) -> MicroBatches:
        return self.stream(epoch, start, self.order.num_steps - start)

    @property
    def reads_on(self) -> bool:
        return True

    @property
    def starts_processes(self) -> bool:
        return False

    def check(self) -> None:
        self.store.check()

    def stream(self, epoch: int, start: int, steps: int) -> MicroBatches:
        self.store.check()
        training = self.context.training
        verify = self.context.verifies(self._is_verified)
        verify_on = self.context.verifies(True)  # in the epochs that follow
        steps_left = self.order.num_steps - start
        shares, ahead = tee(self.order.shares_on(epoch, start, steps))
        requests = (
            Request(
                number, own.indices, training, verify if number == epoch else verify_on, own.keys
            )
            for number, own in ahead
        )
        decodes = any(field.encoding == "image" for field in self.manifest.fields.values())
        with (
            crowded() if decodes else nullcontext(),
            closing(self._run(requests, self._largest_share)) as batches,
        ):
            for (_, share), batch in zip(shares, batches, strict=False):
                steps_left -= share.last
                if verify and not steps_left:  # before the consumer closes this generator
                    self._is_verified = True
                yield MicroBatch(keyed(batch, share), share.weight, share.last)

    def sample(self, count: int) -> Batch:
        request = Request(0, self.order.sample(count), training=False)
        with closing(self._run(iter([request]), len(request.indices))) as batches:
            return next(batches)

    @cached_property
    def _largest_share(self) -> int:
        """The most records of a share: the sizes of an epoch's batches are those of every epoch."""
        return max((len(share.indices) for share in self.order.shares(0)), default=1)

    def stages(self) -> dict[str, float]:
        """Return {}: DALI's threads read, decode and scale in one graph that tells no times."""
        return {}

    def close(self) -> None:
        self._pipeline = None
        self.store.close()

    def _run(self, requests: Iterator[Request], largest: int) -> Generator[Batch]:
        """Yield the batch of each request. None has more than ``largest`` records."""
        self._ragged.clear()
        self._turns.clear()
        self._under_way.clear()
        self._failure = None
        self._feed = self._fed(requests)
        # a pipeline whose last epoch did not end cleanly still holds stale batches
        if self._pipeline is not None and not self._stale and self._largest >= largest:
            self._pipeline.reset()
        else:
            self._pipeline = self._build(largest)
            self._largest = largest
        self._stale = True
        while True:
            try:
                tensors = self._copies(self._pipeline.run())
            except StopIteration:
                self._stale = False
                break
            except Exception as error:
                self._pipeline = None  # DALI's pipelines are unusable after an error
                under_way = [indices for indices, _ in self._under_way]
                raise self._explain(error, under_way) from error
            indices, _ = self._under_way.popleft()
            batch = self._turned(dict(zip(self._names, tensors, strict=True)))
            yield with_nested({"index": indices.clone(), **batch, **self._ragged.popleft()})
        if self._failure is not None:
            raise self._failure

    def _fed(self, requests: Iterator[Request]) -> Iterator[tuple[Any, ...]]:
        """Yield what the pipeline gets. After an error it ends, so that earlier batches come."""
        for request in requests:
            try:
                inputs = self._inputs(request)
            except Exception as error:  # noqa: BLE001  # raised where its batch is awaited
                self._failure = error
                return
            self._under_way.append((request.indices, inputs))
            yield inputs

    def _turned(self, batch: Batch) -> Batch:
        """Exchange rows and columns of the images for which the transform wants it."""
        for name, waiting in self._turns.items():
            turned = waiting.popleft()
            if not turned.any():
                continue
            images = batch[name]
            exchanged = images.transpose(2, 3)
            if turned.all():
                batch[name] = exchanged.contiguous()
            elif images.shape[2] != images.shape[3]:
                what = f"turned, the {name} of a record has another size than the others"
                where = self.manifest.source or "the store"
                raise DataError(107, where, what, "add a transform that cuts squares")
            else:
                where = turned.to(images.device).view(-1, 1, 1, 1)
                batch[name] = torch.where(where, exchanged, images)
        return batch

    def _copies(self, outputs: Any) -> list[Tensor]:
        """Return copies of DALI's outputs, whose memory DALI reuses once they are dropped.

        On a GPU the copies have a stream of their own. Its end is soon there, while that of the
        consumer's stream is behind all the steps that are queued.
        """
        if self._stream is None:
            return [torch.from_dlpack(output.as_tensor()).clone() for output in outputs]
        with torch.cuda.stream(self._stream):
            tensors = [torch.from_dlpack(output.as_tensor()).clone() for output in outputs]
        self._stream.synchronize()
        consumer = torch.cuda.current_stream(self.context.device)
        for tensor in tensors:
            tensor.record_stream(consumer)
        return tensors

    def _build(self, batch_size: int) -> Any:
        fn, _, pipeline_class = self._dali
        context = self.context
        gpu = context.device.type == "cuda"
        device_id = None
        if gpu:
            device_id = context.device.index or 0
        num_threads = context.num_workers
        if num_threads is None:
            # Beside an H100 with 16 cores, plain DALI with 8 threads kept the step at 0.97 of its
            # rate, and ours with 16 slowed it: docs/gpu.md.
            num_threads = -(-context.num_cores // 2) if gpu else context.num_cores
        pipeline = pipeline_class(
            batch_size=batch_size,
            num_threads=max(1, num_threads),
            device_id=device_id,
            prefetch_queue_depth=self.prefetch_depth,
        )
        fields = {name: self.manifest.fields[name] for name in self._names}
        with pipeline:
            inputs = fn.external_source(
                source=lambda: next(self._feed),
                num_outputs=len(fields) + 4 * len(self._cut),
                batch=True,
                no_copy=True,
            )
            windows = {name: inputs[len(fields) + 4 * n :][:4] for n, name in enumerate(self._cut)}
            outputs: list[Any] = []
            for node, (name, field) in zip(inputs, fields.items(), strict=False):
                image = node
                if field.encoding != "raw" and name not in self._maps:
                    image = self._decoded(node, windows[name], field.shape[0], gpu)
                elif gpu:
                    image = node.gpu()
                if name in windows and field.encoding == "raw":
                    image = self._sliced(image, windows[name])
                if name in windows:
                    image = self._finished(image, windows[name])
                outputs.append(image)
            pipeline.set_outputs(*outputs)
        pipeline.build()
        return pipeline

    def _decoded(self, data: Any, window: list[Any], channels: int | None, gpu: bool) -> Any:
        """Return the transform's window of files, [h, w, C]. Pixels beside it are not decoded."""
        fn, types, _ = self._dali
        return fn.decoders.image_slice(
            data,
            start=window[0],
            shape=window[1],
            axes=(0, 1),
            device="mixed" if gpu else "cpu",
            output_type=types.GRAY if channels == 1 else types.RGB,
            adjust_orientation=True,
        )

    def _sliced(self, image: Any, window: list[Any]) -> Any:
        """Return the transform's window of raw pixels, [h, w, C]."""
        fn, _, _ = self._dali
        return fn.slice(image, start=window[0], shape=window[1], axes=(0, 1))

    def _finished(self, image: Any, window: list[Any]) -> Any:
        """Return a window scaled and flipped, [C, h, w]."""
        fn, _, _ = self._dali
        _, _, mirror, upside_down = window
        if self.context.transform.size is not None:
            image = fn.resize(
                image, size=self.context.transform.size, antialias=self.context.transform.antialias
            )
        image = fn.flip(image, horizontal=mirror, vertical=upside_down)
        return fn.transpose(image, perm=[2, 0, 1])

    def _inputs(self, request: Request) -> tuple[Any, ...]:
        """Return a batch for ``external_source``: each field, then four arrays for each cut one."""
        records = self.store.read(request.indices)
        if request.verify:
            check_crcs(self.store, request.indices, records)
        numbers = self._reader.numbers(request)
        records |= self._reader.followed(records, request.indices, numbers)
        records |= self._reader.heard(records, request.indices, numbers)
        ragged: Batch = {}
        for name in self._reader.ragged:
            ragged |= self._reader.collated(name, records[name], request.indices)
        self._ragged.append(ragged)
        values: list[Any] = []
        for name in self._names:
            if name in self._maps:
                maps = self._reader.label_map(name, records[name], request.indices, numbers)
                values.append(maps.numpy())
            else:
                values.append(self._array(name, records[name]))
        for name in self._cut:
            values += self._windows(name, records[name], request.indices, numbers)
        return tuple(values)

    def _array(self, name: str, values: Any) -> Any:
        if not isinstance(values, Tensor):
            return [np.frombuffer(value, np.uint8) for value in values]
        if name in self._cut and not self.manifest.fields[name].interleaved:
            values = values.permute(0, 2, 3, 1).contiguous()
        return values.numpy()

    def _windows(
        self, name: str, images: Any, indices: Tensor, numbers: Tensor | None
    ) -> tuple[Any, ...]:
        sizes = self._reader.sizes(self.manifest.fields[name], images, indices)
        windows = self.context.transform.windows(sizes, numbers)
        start, shape = windows[:, :2].int(), windows[:, 2:4].int()
        bits = torch.tensor([MIRRORED, UPSIDE_DOWN, TURNED])
        mirrored, upside_down, turned = (windows[:, 4:] & bits).ne(0).unbind(1)
        if may_turn(self.context.transform):
            # ``_turned`` exchanges rows and columns last, and thereby the sides that are flipped
            mirrored, upside_down = (
                torch.where(turned, upside_down, mirrored),
                torch.where(turned, mirrored, upside_down),
            )
            self._turns.setdefault(name, deque()).append(turned)
        flips = (mirrored.int().numpy(), upside_down.int().numpy())
        return start.numpy(), shape.numpy(), *flips

    def _explain(self, error: Exception, under_way: list[Tensor]) -> Exception:
        """Return a DataError that names the record, which DALI does not.

        It is the first record ``under_way`` that our own decoder refuses too.
        """
        words = " ".join(str(error).split())[:300]
        first = self.store.name(int(under_way[0][0]))
        if "dense" in words.lower() or "uniform" in words.lower():
            what = "the images of its batch have different sizes"
            return DataError(107, first, what, "set transform=resize, or pack with one size")
        for indices in under_way:
            bad = self._bad_image(indices)
            if bad is not None:
                return bad
        what = f"DALI could not make this record's batch ({words})"
        return DataError(106, first, what, "see which with data=hdf5 or lmdb")

    def _bad_image(self, indices: Tensor) -> DataError | None:
        records = self.store.read(indices)
        for name, field in self.manifest.fields.items():
            if field.encoding != "image" or field.kind == "labels":
                continue
            for index, data in zip(indices.tolist(), records[name], strict=True):
                try:
                    decode(data, field.shape[0] or 3)
                except BadImage as error:
                    return unreadable(self.store, index, error)
        return None


def _refuse(context: SourceContext) -> None:
    """Raise ConfigError for settings that DALI would ignore."""
    if context.transform.function is not None:
        where = "data = dali, a transform with a function"
        raise ConfigError(174, where, "DALI's operators cannot call it", "choose data=hdf5 or lmdb")
    size = context.transform.size
    if size is not None and size[0] != size[1] and may_turn(context.transform):
        where = f"data = dali, a transform that turns images and cuts {size[0]} x {size[1]} pixels"
        fix = "cut squares, or choose data=hdf5 or lmdb"
        raise ConfigError(174, where, "DALI's operators turn squares only", fix)
    if context.worker_kind == "process":
        where = "data = dali, workers.kind = process"
        raise ConfigError(174, where, "DALI works in threads", "leave workers.kind out")


def _import_dali() -> tuple[Any, Any, Any]:
    try:
        from nvidia.dali import fn, types  # noqa: PLC0415  # optional: an extra
        from nvidia.dali.pipeline import Pipeline  # noqa: PLC0415
    except ImportError as error:
        what = f"DALI is not installed ({error})"
        fix = f"{pip_install('dali')}, or choose data=hdf5"
        raise ResourceError(103, "data = dali", what, fix) from error
    return fn, types, Pipeline
