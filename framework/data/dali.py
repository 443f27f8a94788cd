"""DALI as a Source: ``external_source`` feeds its pipeline the records of a store in our order.

Raw fields pass through the pipeline, and ragged ones bypass it. DALI decodes, cuts and scales
images, on the GPU (``mixed``) if there is one. Our own reader cuts label maps, since no decoder of
DALI keeps a palette's indices. Its iterator classes would drop or repeat the partial last batch.
"""

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.batch import Batch
from framework.contracts.data import MIRRORED, TURNED, UPSIDE_DOWN, SourceContext
from framework.data.fields import samples_of
from framework.data.pictures import Slice, nothing_yet, unreadable
from framework.data.reader import BatchReader, Request, check_crcs
from framework.data.source import WorkerSource, make_order
from framework.errors import ConfigError, DataError, ResourceError
from framework.measure.clock import Stopwatch
from framework.media.decode import decode
from framework.media.header import BadImage
from framework.store.open_store import open_store
from framework.store.store_facts import StoreFacts
from framework.system import native, user_code


def dali_source(path: str, prefetch_depth: int, *, context: SourceContext) -> "DALISource":
    """Return a source of the store at ``path`` with a DALI pipeline."""
    return DALISource(path, prefetch_depth, context)


@final
class DALISource(WorkerSource[BatchReader]):
    """A Source that decodes with DALI. ``prefetch_depth``: batches DALI prepares ahead.

    Our reader reads only what DALI is given. DALI does not report times. ResourceError R103 if it
    is not installed, ConfigError C174 for what it cannot do.
    """

    takes_workers = False
    graph_refusal = "DALI frees memory in threads of its own, which capturing forbids"

    def __init__(self, path: str, prefetch_depth: int, context: SourceContext) -> None:
        try:
            from nvidia.dali import fn, types  # noqa: PLC0415  # optional: an extra
            from nvidia.dali.pipeline import Pipeline  # noqa: PLC0415
        except ImportError as error:
            what = f"DALI is not installed ({error})"
            fix = f"{user_code.pip_install('dali')}, or choose data=hdf5"
            raise ResourceError(103, "data = dali", what, fix) from error
        self._dali: tuple[Any, Any, Any] = fn, types, Pipeline
        self.store = open_store(path)
        self.prefetch_depth = prefetch_depth
        transform, other = context.transform, "choose data=hdf5 or lmdb"
        if transform.function is not None:
            where = "data = dali, a transform with a function"
            raise ConfigError(174, where, "DALI's operators cannot call it", other)
        if transform.size is not None and transform.turns:
            height, width = transform.size
            if height != width:
                where = f"data = dali, a transform that turns images and cuts {height} x {width}"
                fix = f"cut squares, or {other}"
                raise ConfigError(174, f"{where} pixels", "DALI's operators turn squares only", fix)
        if context.worker_kind == "process":
            where = "data = dali, workers.kind = process"
            raise ConfigError(174, where, "DALI works in threads", "leave workers.kind out")
        read = BatchReader(self.store, context)
        if read.videos:
            where = f"data = dali, video {', '.join(read.videos)}"
            raise ConfigError(174, where, "DALI is not given videos", other)
        is_gpu = context.device.type == "cuda"
        num_threads = context.num_workers
        if num_threads is None:
            # Beside an H100 with 16 cores, plain DALI with 8 threads kept the step at 0.97 of its
            # rate, and ours with 16 slowed it: docs/measured.md.
            num_threads = -(-context.num_cores // 2) if is_gpu else context.num_cores
        context = replace(context, num_workers=num_threads)
        manifest = self.store.manifest
        order = make_order(manifest.num_records, manifest.source, context, StoreFacts(self.store))
        if order.sampler is not None:
            where = "data = dali, order._target_"
            raise ConfigError(174, where, "DALI must know the largest batch of a sampler", other)
        super().__init__(read, manifest, order, context, "thread", read.padded)
        fields = manifest.fields
        self._names = [name for name, field in fields.items() if field.encoding != "ragged"]
        self._ragged: deque[Batch] = deque()  # of the batches that the pipeline makes
        self._maps = [name for name in read.cut if fields[name].kind == "labels"]
        self._cut = [name for name in read.cut if name not in self._maps]
        self._turns: dict[str, deque[Tensor]] = {}  # of the same batches, by field
        self._feed: Iterator[tuple[Any, ...]] = iter(())
        # The records of the same batches, and what DALI was given: it reads that where it lies.
        self._under_way: deque[tuple[Tensor, Any]] = deque()
        self._failure: Exception | None = None  # ended the feed
        self._largest_share = 0  # the most records of a share; 0: not known yet
        self._pipeline: Any = None
        self._stream = torch.cuda.Stream(context.device) if is_gpu else None

    def read_batches(self, requests: Iterator[Request]) -> Generator[Batch]:
        decodes = any(field.encoding == "image" for field in self.manifest.fields.values())
        with native.crowded() if decodes else nullcontext():
            if not self._largest_share:  # an epoch's batches have the sizes of every epoch's
                sizes = (len(share.indices) for share in self.order.shares(0))
                self._largest_share = max(sizes, default=1)
            yield from self._run(requests, self._largest_share)

    def read_batch(self, request: Request) -> Batch:
        with closing(self._run(iter([request]), len(request.indices))) as batches:
            return next(batches)

    def close(self) -> None:
        self._pipeline = None
        self.store.close()

    def _run(self, requests: Iterator[Request], largest: int) -> Generator[Batch]:
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
                raise self._explain(error, [indices for indices, _ in self._under_way]) from error
            indices, _ = self._under_way.popleft()
            batch: Batch = dict(zip(self._names, tensors, strict=True))
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
            yield {"index": indices.clone(), **batch, **self._ragged.popleft()}
        if self._failure is not None:
            raise self._failure

    def _fed(self, requests: Iterator[Request]) -> Iterator[tuple[Any, ...]]:
        for request in requests:
            try:
                inputs = self._inputs(request)
            except Exception as error:  # noqa: BLE001  # raised where its batch is awaited
                self._failure = error
                return
            self._under_way.append((request.indices, inputs))
            yield inputs

    def _copies(self, outputs: Any) -> list[Tensor]:
        """Return copies of DALI's outputs, whose memory DALI reuses once they are dropped.

        On a GPU they have a stream of their own, since the consumer's is behind all queued steps.
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
        fn, types, pipeline_class = self._dali
        context, transform = self.context, self.context.transform
        gpu = context.device.type == "cuda"
        pipeline = pipeline_class(
            batch_size=batch_size,
            num_threads=max(1, self.workers.num),
            device_id=context.device.index or 0 if gpu else None,
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
            for image, (name, field) in zip(inputs, fields.items(), strict=False):
                window = windows.get(name)
                if field.encoding != "raw" and window is not None:
                    image = fn.decoders.image_slice(  # noqa: PLW2901  # decodes no pixels beside it
                        image,
                        start=window[0],
                        shape=window[1],
                        axes=(0, 1),
                        device="mixed" if gpu else "cpu",
                        output_type=types.GRAY if field.shape[0] == 1 else types.RGB,
                        adjust_orientation=True,
                    )
                elif gpu:
                    image = image.gpu()  # noqa: PLW2901
                if window is not None:
                    if field.encoding == "raw":
                        image = fn.slice(image, start=window[0], shape=window[1], axes=(0, 1))  # noqa: PLW2901
                    if transform.size is not None:
                        image = fn.resize(image, size=transform.size, antialias=transform.antialias)  # noqa: PLW2901
                    image = fn.flip(image, horizontal=window[2], vertical=window[3])  # noqa: PLW2901
                    image = fn.transpose(image, perm=[2, 0, 1])  # noqa: PLW2901  # [C, h, w]
                outputs.append(image)
            pipeline.set_outputs(*outputs)
        pipeline.build()
        return pipeline

    def _inputs(self, request: Request) -> tuple[Any, ...]:
        """Return a batch for ``external_source``: each field, then four arrays for each cut one."""
        indices, fields = request.indices, self.manifest.fields
        records = self.store.read(indices)
        if request.verify:
            check_crcs(self.store, indices, records)
        numbers = self.read.numbers(request)
        records |= self.read.moved_with_images(records, indices, numbers)
        for name in self.read.sounds:
            how = indices, self.context.transform, numbers
            records[name] = samples_of(self.store, records[name], *how)
        ragged: Batch = {}
        for name in self.read.ragged:
            ragged |= self.read.collated(name, records[name], indices)
        self._ragged.append(ragged)
        arrays: list[Any] = []
        for name in self._names:
            values = records[name]
            if name in self._maps:
                part = Slice(indices, indices, numbers, Stopwatch(), nothing_yet(len(indices)), {})
                values = self.read.pictures.stacked(name, fields[name], values, part)
            elif not isinstance(values, Tensor):
                arrays.append([np.frombuffer(value, np.uint8) for value in values])
                continue
            elif name in self._cut and not fields[name].interleaved:
                values = values.permute(0, 2, 3, 1).contiguous()
            arrays.append(values.numpy())
        transform, bits = self.context.transform, torch.tensor([MIRRORED, UPSIDE_DOWN, TURNED])
        for name in self._cut:
            sizes = self.read.pictures.opened(fields[name], records[name], indices).sizes
            windows = transform.windows(sizes, numbers)
            flips = (windows[:, 4:] & bits).ne(0)
            if transform.turns:
                # ``_run`` exchanges rows and columns last, and so the sides that are flipped
                turned = flips[:, 2]
                flips = torch.where(turned.unsqueeze(1), flips[:, [1, 0]], flips[:, :2])
                self._turns.setdefault(name, deque()).append(turned)
            arrays += [windows[:, :2].int().numpy(), windows[:, 2:4].int().numpy()]
            arrays += [flip.int().numpy() for flip in flips[:, :2].unbind(1)]
        return tuple(arrays)

    def _explain(self, error: Exception, under_way: list[Tensor]) -> Exception:
        """Return a DataError that names the record: the first that our own decoder refuses too."""
        words = " ".join(str(error).split())[:300]
        first = self.store.name(int(under_way[0][0]))
        if "dense" in words.lower() or "uniform" in words.lower():
            what = "the images of its batch have different sizes"
            return DataError(107, first, what, "set transform=resize, or pack with one size")
        for indices in under_way:
            records = self.store.read(indices)
            for name, field in self.manifest.fields.items():
                if field.encoding != "image" or field.kind == "labels":
                    continue
                for index, data in zip(indices.tolist(), records[name], strict=True):
                    try:
                        decode(data, field.shape[0] or 3)
                    except BadImage as bad:
                        return unreadable(self.store, index, bad)
        what = f"DALI could not make this record's batch ({words})"
        return DataError(106, first, what, "see which with data=hdf5 or lmdb")
