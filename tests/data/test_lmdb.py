"""``data=lmdb`` reads a packed store."""

from contextlib import closing

import pytest
import torch

from framework.data.lmdb import lmdb_source
from framework.errors import ConfigError
from tests.conftest import make_context, make_records, write_store

PATH = "train.lmdb"


@pytest.mark.parametrize("stage", ["none", "cold", "ram"])
def test_the_records_come_in_the_order_of_the_context(stage):
    records = make_records(10)
    context = make_context(batch_size=4, training=False)
    with closing(lmdb_source(write_store(PATH, records), stage, context=context)) as source:
        batches = [micro.batch for micro in source.batches(0)]
    assert torch.cat([batch["index"] for batch in batches]).tolist() == list(range(10))
    assert torch.cat([batch["label"] for batch in batches]).tolist() == records["label"].tolist()


def test_an_unknown_place_to_keep_data_is_refused():
    with pytest.raises(ConfigError, match="C172"):
        lmdb_source(write_store(PATH, make_records(2)), "disk", context=make_context())
