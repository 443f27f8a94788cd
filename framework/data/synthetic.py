"""One batch for ever: the speed of training if data costs nothing."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import final

import torch

from framework.contracts.batch import Batch, pin
from framework.contracts.data import MicroBatch, MicroBatches, Source, SourceContext, keyed
from framework.contracts.records import Field, Manifest
from framework.data.source import make_order
from framework.errors import ConfigError
from framework.order.draws import draws


@final
class SyntheticSource(Source):
    """The same random images ([C, H, W]) and labels at every step. Memory holds one batch."""

    def __init__(
        self,
        path: str,
        image_shape: Sequence[int],
        num_classes: int,
        num_records: int,
        *,
        context: SourceContext,
    ) -> None:
        if context.num_workers:
            where = f"workers.num = {context.num_workers}, data = synthetic"
            what = "there is nothing to read, so workers would be idle"
            raise ConfigError(174, where, what, "leave workers.num out")
        self.order = make_order(num_records, "data=synthetic", context)
        fields = {"image": Field("uint8", tuple(image_shape)), "label": Field("int64", ())}
        classes = [str(number) for number in range(num_classes)]
        self.manifest = Manifest(num_records, fields, classes, source=f"synthetic {path}")
        self._seed = context.seed
        self._size = min(self.order.batch_size, num_records)
        self._largest = self._batch(torch.arange(self._size))
        if context.device.type == "cuda":
            self._largest = pin(self._largest)  # once, since data costs nothing here

    def _batch(self, indices: torch.Tensor) -> Batch:
        shape = [size or 1 for size in self.manifest.fields["image"].shape]
        numbers = draws(indices, self._seed, 0, math.prod(shape) + 1)
        image = (numbers[:, 1:] * 256).to(torch.uint8).reshape(-1, *shape)
        label = (numbers[:, 0] * len(self.manifest.classes)).to(torch.int64)
        return {"index": indices, "image": image, "label": label}

    def batches(self, epoch: int, start: int = 0) -> MicroBatches:
        same = replace(self.order, shuffle=False)  # nothing to read, so nothing to shuffle
        for share in same.shares(epoch, start):
            batch = self._largest.copy()
            count = len(share.indices)
            if count < self._size:  # only an epoch's last is short, and slicing takes 7 us
                batch = {name: tensor[:count] for name, tensor in batch.items()}
            yield MicroBatch(keyed(batch, share), share.weight, share.last)

    def sample(self, count: int) -> Batch:
        if count == self._size:
            return self._largest.copy()
        return self._batch(self.order.sample(count))
