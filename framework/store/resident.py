"""A whole store as tensors on a device: for sets that fit. A batch is one gather per field; nothing crosses the bus but the indices."""

from collections.abc import Collection
from typing import Any, final

import torch
from torch import Tensor

from framework.contracts.records import Manifest, Records, RecordStore
from framework.errors import ConfigError, ResourceError

BLOCK = 4096  # records read at a time


@final
class ResidentStore:
    """A RecordStore over tensors on ``device``, read from ``store`` at the first read. Raw fields only: ConfigError C171."""

    def __init__(self, store: RecordStore, device: torch.device) -> None:
        self.store, self.device = store, device
        self._tensors: dict[str, Tensor] = {}
        encoded = [name for name, field in store.manifest.fields.items() if field.encoding != "raw"]
        if encoded:
            fix = "pack with pack.encode=raw, or set data.stage=ram"
            raise ConfigError(
                171,
                "data.stage = device",
                f"{encoded} is encoded; only raw fields are kept on a device",
                fix,
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tensors": {}}

    @property
    def manifest(self) -> Manifest:
        return self.store.manifest

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        """Tensors on the device."""
        if not self._tensors:
            self._load()
        there = indices.to(self.device, non_blocking=True)
        return {name: tensor.index_select(0, there) for name, tensor in self._tensors.items()}

    def _load(self) -> None:
        count = self.manifest.num_records
        try:
            for start in range(0, count, BLOCK):
                records = self.store.read(torch.arange(start, min(start + BLOCK, count)))
                for name, values in records.items():
                    if name not in self._tensors:
                        self._tensors[name] = torch.empty(
                            count, *values.shape[1:], dtype=values.dtype, device=self.device
                        )
                    self._tensors[name][start : start + len(values)] = values.to(self.device)
        except (torch.OutOfMemoryError, MemoryError) as error:
            self._tensors = {}
            what = f"the set does not fit on {self.device}"
            raise ResourceError(
                107, "data.stage = device", what, "set data.stage=ram or none"
            ) from error
        self.store.close()

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        return self.store.damaged(indices, {name: values.cpu() for name, values in records.items()})

    def key(self, index: int) -> str:
        return self.store.key(index)

    def name(self, index: int) -> str:
        return self.store.name(index)

    def check(self) -> None:
        self.store.check()

    def close(self) -> None:
        self._tensors = {}
        self.store.close()
