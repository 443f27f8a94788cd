"""A store kept as tensors on a device. A batch is one gather per field; only indices are copied."""

from collections.abc import Collection
from typing import Any, final

import torch
from torch import Tensor

from framework.contracts.records import Manifest, Records, RecordStore
from framework.errors import ConfigError, ResourceError
from framework.store.columns import column_of, lengths_of

BLOCK_RECORDS = 4096  # read at a time


@final
class ResidentStore:
    """A RecordStore of raw fields on ``device``. The first read copies all of ``store`` there.

    Raises:
        ConfigError: C171 if a field is encoded.
        ResourceError: R107, at the first read, if the store does not fit.
    """

    def __init__(self, store: RecordStore, device: torch.device) -> None:
        self.store = store
        self.device = device
        self._tensors: dict[str, Tensor] = {}
        encoded = [name for name, field in store.manifest.fields.items() if field.encoding != "raw"]
        if encoded:
            what = f"{encoded} is encoded or ragged; only plain arrays are kept on a device"
            fix = "pack images with pack.encode=raw, or set data.stage=ram"
            raise ConfigError(171, "data.stage = device", what, fix)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tensors": {}}

    @property
    def manifest(self) -> Manifest:
        return self.store.manifest

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        """Return tensors on the device."""
        if not self._tensors:
            self._load()
        there = indices.to(self.device, non_blocking=True)
        return {name: tensor.index_select(0, there) for name, tensor in self._tensors.items()}

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        return self.store.damaged(indices, {name: values.cpu() for name, values in records.items()})

    def column(self, name: str) -> Any:
        return column_of(self.store, name)

    def lengths(self, name: str) -> Tensor:
        return lengths_of(self.store, name)

    def key(self, index: int) -> str:
        return self.store.key(index)

    def name(self, index: int) -> str:
        return self.store.name(index)

    def check(self) -> None:
        self.store.check()

    def close(self) -> None:
        self._tensors = {}
        self.store.close()

    def _load(self) -> None:
        count = self.manifest.num_records
        try:
            for start in range(0, count, BLOCK_RECORDS):
                stop = min(start + BLOCK_RECORDS, count)
                for name, values in self.store.read(torch.arange(start, stop)).items():
                    if name not in self._tensors:
                        shape = (count, *values.shape[1:])
                        self._tensors[name] = torch.empty(
                            shape, dtype=values.dtype, device=self.device
                        )
                    self._tensors[name][start:stop] = values.to(self.device)
        except (torch.OutOfMemoryError, MemoryError) as error:
            self._tensors = {}
            what = f"the set does not fit on {self.device}"
            fix = "set data.stage=ram or none"
            raise ResourceError(107, "data.stage = device", what, fix) from error
        self.store.close()
