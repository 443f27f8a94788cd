"""One batch for ever: what training costs when data costs nothing. The headroom of every other choice."""

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import torch

from framework.contracts.batch import Batch, pin
from framework.contracts.data import MicroBatch, MicroBatches, SourceContext
from framework.contracts.records import Field, Manifest
from framework.errors import ConfigError
from framework.order import Order, draws, spread


@final
class SyntheticSource:
    """The same random images and labels again and again. ``path`` is the name of the split and is not opened.

    image_shape: (C, H, W). Memory holds one batch, whatever ``num_records`` says.
    """

    graph_refusal = None

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
            what = "there is nothing to read, so nobody would use them"
            raise ConfigError(
                174,
                f"workers.num = {context.num_workers}, data = synthetic",
                what,
                "leave workers.num out",
            )
        self.order: Order = context.order(num_records)
        fields = {"image": Field("uint8", tuple(image_shape)), "label": Field("int64", ())}
        self.manifest = Manifest(
            num_records, fields, [str(n) for n in range(num_classes)], source=f"synthetic {path}"
        )
        self._seed = context.seed
        self._size = min(self.order.batch_size, num_records)
        largest = self._batch(torch.arange(self._size), context.seed)
        self._largest = (
            pin(largest) if context.device.type == "cuda" else largest
        )  # once: data costs nothing here

    def _batch(self, indices: torch.Tensor, seed: int) -> Batch:
        shape = self.manifest.fields["image"].shape
        numbers = draws(indices, seed, 0, torch.Size([s or 1 for s in shape]).numel() + 1)
        image = (numbers[:, 1:] * 256).to(torch.uint8).reshape(-1, *[s or 1 for s in shape])
        label = (numbers[:, 0] * len(self.manifest.classes)).to(torch.int64)
        return {"index": indices, "image": image, "label": label}

    def batches(self, epoch: int, start: int = 0) -> MicroBatches:
        same = replace(self.order, shuffle=False)  # nothing to read, so nothing to shuffle
        for share in same.shares(epoch, start):
            yield MicroBatch(self._first(len(share.indices)), share.weight, share.last)

    def _first(self, count: int) -> Batch:
        if count == self._size:  # all but an epoch's last: without the 7 us of slicing
            return self._largest.copy()
        return {name: tensor[:count] for name, tensor in self._largest.items()}

    def sample(self, count: int) -> Batch:
        if count == self._size:
            return self._largest.copy()
        indices = spread(self.order.num_records, min(count, self.order.num_records))
        return self._batch(indices, self._seed)

    def stages(self) -> dict[str, float]:
        """{}: there is nothing to read."""
        return {}

    def close(self) -> None:
        pass
