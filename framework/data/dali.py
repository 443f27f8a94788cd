"""DALI as a Source: its pipeline is fed, by ``external_source``, the records of either store in our order.

Raw fields pass through; image fields are decoded, cut and scaled by DALI's operators, on the GPU (``mixed``) where there is one.
Label maps are cut by our own reader: DALI has no decoder that keeps a palette's indices.
The pipeline is run directly: no iterator class, whose policies drop or repeat the partial last batch.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.batch import Batch
from framework.contracts.data import MicroBatch, MicroBatches, SourceContext
from framework.contracts.records import Field, Manifest
from framework.data.reader import BatchReader, Request, check_crcs, is_cut
from framework.data.source import make_order
from framework.errors import ConfigError, DataError, ResourceError
from framework.image.decode import accepted_header, decode
from framework.image.header import BadImage
from framework.order import ON_HOST, Order, Share, draws, spread
from framework.store.open_store import open_store
from framework.system.native import crowded


def dali_source(path: str, prefetch_depth: int, *, context: SourceContext) -> "DALISource":
    """The records of the store at ``path``, through a DALI pipeline."""
    return DALISource(path, prefetch_depth, context)


@final
class DALISource:
    """A Source whose decoding is DALI's. ``prefetch_depth``: batches DALI prepares ahead."""

    graph_refusal = "DALI frees memory in threads of its own, which capturing forbids"

    def __init__(self, path: str, prefetch_depth: int, context: SourceContext) -> None:
        self._dali = _import_dali()
        self.store, self.context, self.prefetch_depth = open_store(path), context, prefetch_depth
        _refuse(context)
        self.order: Order = make_order(self.store, context)
        self._first_epoch: int | None = None
        self._names = list(self.store.manifest.fields)
        fields = self.store.manifest.fields
        cut = [name for name, field in fields.items() if is_cut(field, context.transform)]
        self._maps = [name for name in cut if fields[name].kind == "labels"]
        self._cut = [name for name in cut if name not in self._maps]
        self._reader = BatchReader(self.store, context)
        self._feed: Iterator[tuple[Any, ...]] = iter(())
        self._pipeline: Any = None

    @property
    def manifest(self) -> Manifest:
        return self.store.manifest

    def batches(self, epoch: int, start: int = 0) -> MicroBatches:
        self.store.check()
        self._first_epoch = epoch if self._first_epoch is None else self._first_epoch
        when = self.context.verify
        verify = when == "always" or (when == "first_epoch" and epoch == self._first_epoch)
        decodes = any(field.encoding == "image" for field in self.manifest.fields.values())
        with crowded() if decodes else nullcontext():
            yield from self._run(
                list(self.order.shares(epoch, start)), epoch, self.context.training, verify
            )

    def sample(self, count: int) -> Batch:
        indices = spread(self.order.num_records, min(count, self.order.num_records))
        return next(
            iter(self._run([Share(indices, 1.0, True)], 0, training=False, verify=False))
        ).batch

    def stages(self) -> dict[str, float]:
        """{}: DALI's own threads read ahead, decode and scale in one graph, and say nothing of how long each takes."""
        return {}

    def close(self) -> None:
        self._pipeline = None
        self.store.close()

    def _run(self, shares: list[Share], epoch: int, training: bool, verify: bool) -> MicroBatches:
        largest = max((len(share.indices) for share in shares), default=1)
        self._feed = (
            self._inputs(Request(epoch, share.indices, training, verify)) for share in shares
        )
        self._prepare(largest)
        for number, share in enumerate(shares):
            try:
                outputs = self._pipeline.run()
                batch = {
                    name: _tensor(output) for name, output in zip(self._names, outputs, strict=True)
                }
            except Exception as error:
                self._pipeline = None  # DALI's pipelines are unusable after an error
                raise self._explain(
                    error, shares[number : number + 1 + self.prefetch_depth]
                ) from error
            yield MicroBatch({"index": share.indices.clone(), **batch}, share.weight, share.last)
        self._exhaust()

    def _prepare(self, largest: int) -> None:
        """The pipeline of the last epoch, if it ended cleanly; after an early end it still holds stale batches."""
        if self._pipeline is not None and not self._stale and self._largest >= largest:
            self._pipeline.reset()
        else:
            self._pipeline, self._largest = self._build(largest), largest
        self._stale = True

    def _exhaust(self) -> None:
        try:
            self._pipeline.run()
        except StopIteration:
            self._stale = False

    def _build(self, batch_size: int) -> Any:
        fn, _, pipeline_class = self._dali
        gpu = self.context.device.type == "cuda"
        pipeline = pipeline_class(
            batch_size=batch_size,
            num_threads=self.context.num_cores
            if self.context.num_workers is None
            else max(1, self.context.num_workers),
            device_id=(self.context.device.index or 0) if gpu else None,
            prefetch_queue_depth=self.prefetch_depth,
        )
        fields = self.store.manifest.fields
        with pipeline:
            inputs = fn.external_source(
                source=self._next, num_outputs=len(fields) + 4 * len(self._cut), batch=True
            )
            windows = {name: inputs[len(fields) + 4 * n :][:4] for n, name in enumerate(self._cut)}
            outputs: list[Any] = []
            for node, (name, field) in zip(inputs, fields.items(), strict=False):
                is_ready = field.encoding == "raw" or name in self._maps
                image = node if is_ready else self._decoded(node, field.shape[0], gpu)
                image = image.gpu() if gpu and is_ready else image
                outputs.append(self._windowed(image, windows[name]) if name in windows else image)
            pipeline.set_outputs(*outputs)
        pipeline.build()
        return pipeline

    def _decoded(self, data: Any, channels: int | None, gpu: bool) -> Any:
        fn, types, _ = self._dali
        color = types.GRAY if channels == 1 else types.RGB
        return fn.decoders.image(
            data, device="mixed" if gpu else "cpu", output_type=color, adjust_orientation=True
        )

    def _windowed(self, image: Any, window: list[Any]) -> Any:
        """[H, W, C] -> the transform's window of it, [C, h, w]."""
        fn, _, _ = self._dali
        start, shape, mirror, upside_down = window
        image = fn.slice(
            image, start, shape, axes=(0, 1), normalized_anchor=False, normalized_shape=False
        )
        if self.context.transform.size is not None:
            image = fn.resize(
                image, size=self.context.transform.size, antialias=self.context.transform.antialias
            )
        image = fn.flip(image, horizontal=mirror, vertical=upside_down)
        return fn.transpose(image, perm=[2, 0, 1])

    def _next(self) -> tuple[Any, ...]:
        return next(self._feed)

    def _inputs(self, request: Request) -> tuple[Any, ...]:
        """One batch for ``external_source``: each field, then (start, shape, mirror, upside down) for each field that is cut."""
        records = self.store.read(request.indices)
        if request.verify:
            check_crcs(self.store, request.indices, records)
        fields = self.store.manifest.fields
        values = [
            self._map(name, records[name], request)
            if name in self._maps
            else self._array(name, records[name])
            for name in self._names
        ]
        windows = [
            part
            for name in self._cut
            for part in self._windows(fields[name], records[name], request)
        ]
        return (*values, *windows)

    def _array(self, name: str, values: Any) -> Any:
        if not isinstance(values, Tensor):
            return [np.frombuffer(value, np.uint8) for value in values]
        planar = name in self._cut and not self.store.manifest.fields[name].interleaved
        return values.permute(0, 2, 3, 1).contiguous().numpy() if planar else values.numpy()

    def _map(self, name: str, values: Any, request: Request) -> Any:
        return self._reader.label_map(name, values, request.indices, self._numbers(request)).numpy()

    def _numbers(self, request: Request) -> Tensor | None:
        if not request.training:
            return None
        return draws(
            request.indices,
            self.context.seed,
            request.epoch,
            self.context.transform.num_draws,
            ON_HOST,
        )

    def _windows(self, field: Field, images: Any, request: Request) -> tuple[Any, ...]:
        transform, indices, numbers = (
            self.context.transform,
            request.indices,
            self._numbers(request),
        )
        sizes = self._sizes(images, indices, field.interleaved)
        windows = transform.windows(torch.tensor(sizes), numbers)
        start, shape, flip = windows[:, :2].float(), windows[:, 2:4].float(), windows[:, 4].int()
        return start.numpy(), shape.numpy(), (flip & 1).numpy(), (flip >> 1).numpy()

    def _sizes(self, images: Any, indices: Tensor, interleaved: bool) -> list[tuple[int, int]]:
        """(height, width) of each image."""
        if isinstance(images, Tensor):
            height, width = images.shape[1:3] if interleaved else images.shape[2:]
            return [(height, width)] * len(images)
        sizes: list[tuple[int, int]] = []
        for index, data in zip(indices.tolist(), images, strict=True):
            try:
                sizes.append(accepted_header(data).size)
            except BadImage as error:
                raise DataError(
                    106,
                    self.store.name(index),
                    f"not a readable image ({error})",
                    "mend or remove it",
                ) from error
        return sizes

    def _explain(self, error: Exception, under_way: list[Share]) -> Exception:
        """A DataError that names the record, which DALI does not: the first of the batches ``under_way`` that our own decoder refuses too."""
        if isinstance(error, DataError):
            return error
        words, first = (
            " ".join(str(error).split())[:300],
            self.store.name(int(under_way[0].indices[0])),
        )
        if "dense" in words.lower() or "uniform" in words.lower():
            what = "the images of its batch have different sizes"
            return DataError(107, first, what, "set transform=resize, or pack with one size")
        for share in under_way:
            found = self._bad_image(share.indices)
            if found is not None:
                return found
        what = f"DALI could not make this record's batch ({words})"
        return DataError(106, first, what, "see which with data=hdf5 or lmdb")

    def _bad_image(self, indices: Tensor) -> DataError | None:
        records = self.store.read(indices)
        images = {
            name: field.shape[0]
            for name, field in self.manifest.fields.items()
            if field.encoding == "image" and field.kind != "labels"
        }
        for name, channels in images.items():
            for index, data in zip(indices.tolist(), records[name], strict=True):
                try:
                    decode(data, channels or 3)
                except BadImage as error:
                    return DataError(
                        106,
                        self.store.name(index),
                        f"not a readable image ({error})",
                        "mend or remove it",
                    )
        return None


def _refuse(context: SourceContext) -> None:
    """What DALI would ignore."""
    if context.transform.function is not None:
        what = "DALI's operators cannot call it"
        raise ConfigError(
            174, "data = dali, a transform with a function", what, "choose data=hdf5 or lmdb"
        )
    if context.worker_kind == "process":
        raise ConfigError(
            174,
            "data = dali, workers.kind = process",
            "DALI works in threads",
            "leave workers.kind out",
        )


def _import_dali() -> tuple[Any, Any, Any]:
    try:
        from nvidia.dali import fn, types  # noqa: PLC0415  # optional: an extra
        from nvidia.dali.pipeline import Pipeline  # noqa: PLC0415
    except ImportError as error:
        raise ResourceError(
            103,
            "data = dali",
            f"DALI is not installed ({error})",
            "pip install 'paceline[dali]', or choose data=hdf5",
        ) from error
    return fn, types, Pipeline


def _tensor(output: Any) -> Tensor:
    """A DALI output as a tensor of ours: DALI reuses its memory at the next run, so it is copied."""
    return torch.from_dlpack(output.as_tensor()).clone()
