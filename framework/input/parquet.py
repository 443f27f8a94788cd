"""Parquet files, and datasets of Hugging Face (extra: parquet)."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import final

import torch

from framework.contracts.records import Chunk, InputTraits, Manifest
from framework.pack.jobs import as_written
from framework.store.parquet_store import ParquetStore

CACHE_MB = 64  # a job reads neighbors, so that few groups are in use


@final
class ParquetInput(InputTraits):
    """The rows of ``ParquetStore`` in their order. A row's key is its file's name and its number.

    ``conf/input/parquet.yaml`` describes the options.
    """

    def __init__(
        self,
        path: str,
        fields: Mapping[str, str] | None = None,
        classes: Sequence[str] | None = None,
    ) -> None:
        self.path, self.fields, self.classes = path, fields, classes
        self.kinds: Mapping[str, str] = {}

    @cached_property
    def store(self) -> ParquetStore:
        options = (self.fields, self.classes, None, self.kinds, CACHE_MB, "input")
        return ParquetStore(self.path, *options)

    @property
    def manifest(self) -> Manifest:
        return self.store.manifest

    def read(self, start: int, stop: int) -> Chunk:
        records = as_written(self.store.read(torch.arange(start, stop)))
        return Chunk(records, [self.store.key(index) for index in range(start, stop)])

    def name(self, index: int) -> str:
        return self.store.name(index)

    def item_files(self, index: int) -> Sequence[str]:
        return (self.store.file_of(index),)
