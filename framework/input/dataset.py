"""Records of a user's own Dataset, packed as they come out of it."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, final

import torch

from framework.contracts.records import Manifest
from framework.data import dataset as user_data
from framework.errors import DataError, words_of
from framework.input.function import stored_value
from framework.input.rows import Row, RowInput
from framework.order.draws import record_seeds
from framework.store.foreign import check_classes
from framework.system.rng import kept_generators, seed_host_generators
from framework.system.user_code import digest_of

FIELDS = "input.fields"


@final
class DatasetInput(RowInput):
    """The items of a map-style Dataset: dicts, dataclasses or tuples.

    A value is an array, a number, a text or an image file's ``bytes``. Random changes are
    drawn once, by the number of the record. ``conf/input/dataset.yaml`` describes the options.
    """

    def __init__(
        self, dataset: Any, fields: Sequence[str] | None, classes: Sequence[str] | None
    ) -> None:
        self.title = user_data.title_of(dataset)
        items = user_data.checked(dataset, "input.dataset", "give it __len__ and __getitem__")
        form = user_data.ItemForm(user_data.check_names(fields, FIELDS), key=FIELDS)
        self._read = user_data.ItemReader(items, form, 0, self.title)
        self.own_code = digest_of(dataset)  # before the first item, which may open a file, say
        self._num_records = user_data.length_of(dataset, "input.dataset")
        self._classes = check_classes((), classes, self.title) or user_data.classes_of(dataset)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Whether random changes are packed."""
        # whether items draw random numbers
        if not self._num_records or not user_data.try_items(self._read, self._num_records)[1]:
            return ()
        what = "draw random numbers, and each record is packed as it is drawn once"
        return (f"the items of {self.title} {what}; leave random changes to augment=",)

    def described(self) -> Manifest:
        if not self._num_records:
            raise DataError(110, self.title, "no item", "give at least one")
        return Manifest(self._num_records, {}, self._classes, source=f"dataset {self.title}")

    def row(self, index: int) -> Row:
        with kept_generators(user_data.HOST):
            seed_host_generators(int(record_seeds(torch.tensor([index]), 0, 0)))
            record = self._read.record(self._read.item(index), index)
        try:
            return {field: stored_value(value) for field, value in record.items()}
        except (ValueError, TypeError) as error:
            what = f"a value is no array ({words_of(error)})"
            fix = "return arrays, numbers, texts, or an image file's bytes"
            raise DataError(167, self.name(index), what, fix) from error

    def name(self, index: int) -> str:
        return self._read.name(index)
