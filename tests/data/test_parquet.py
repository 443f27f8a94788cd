"""``data=parquet`` reads rows where they lie."""

from contextlib import closing

import pytest

from framework.contracts.records import notes_of
from framework.data.hdf5 import hdf5_source
from framework.data.parquet import parquet_source
from tests.conftest import make_context, write_store
from tests.contract.cases import IMAGE_FIELDS, encoded_records, micros, write_parquet


@pytest.mark.parametrize("worker_kind", ["thread", "process"])
def test_batches_are_those_of_the_packed_store(worker_kind):
    records = encoded_records(20)
    write_parquet("x.parquet", records)
    write_store("packed.h5", records, IMAGE_FIELDS)
    for options in ({}, {"world_size": 2, "rank": 1}, {"block": 3, "window": 2}):
        context = make_context(4, 2, worker_kind, **options)
        with closing(parquet_source("x.parquet", context=context)) as source:
            result = [micros(source, epoch, start) for epoch, start in ((0, 0), (1, 2))]
        with closing(hdf5_source("packed.h5", context=context)) as packed:
            assert result == [micros(packed, epoch, start) for epoch, start in ((0, 0), (1, 2))]


def test_only_random_order_over_more_than_the_cache_gets_a_note():
    write_parquet(
        "x.parquet",
        {"image": encoded_records(40)["image"] * 40, "label": list(range(3)) * 533 + [0]},
    )
    for options, noted in (({}, True), ({"block": 3}, False), ({"training": False}, False)):
        context = make_context(**options)
        with closing(parquet_source("x.parquet", cache_mb=1, context=context)) as source:
            assert bool(notes_of(source)) == noted
