"""``data=tar`` reads shards where they lie."""

from contextlib import closing

import pytest
import torch

from framework.data.hdf5 import hdf5_source
from framework.data.tar import tar_source
from framework.store.tar_store import TarStore
from tests.conftest import make_context, write_store
from tests.contract.cases import IMAGE_FIELDS, encoded_records, micros, plain, write_shards


def test_batches_are_those_of_the_packed_store():
    records = encoded_records(20)
    write_shards("tars", records)
    write_store("packed.h5", records, IMAGE_FIELDS)
    for options in ({}, {"world_size": 2, "rank": 1}, {"block": 4, "window": 2}):
        context = make_context(batch_size=4, num_workers=2, **options)
        with closing(tar_source("tars", context=context)) as tar:
            expected = [micros(tar, epoch, start) for epoch, start in ((0, 0), (1, 2))]
        with closing(hdf5_source("packed.h5", context=context)) as packed:
            assert expected == [micros(packed, epoch, start) for epoch, start in ((0, 0), (1, 2))]


def test_fields_and_classes_can_be_chosen():
    write_shards("tars", encoded_records(6))
    options = {"fields": {"picture": "jpg", "label": "cls"}, "classes": ["a", "b", "c", "d"]}
    with closing(tar_source("tars/train-*.tar", context=make_context(), **options)) as source:
        assert list(source.manifest.fields) == ["picture", "label"]
        assert source.manifest.classes == ["a", "b", "c", "d"]


def test_labels_can_stand_in_the_names():
    write_shards("tars", encoded_records(12))
    options = {"fields": {"image": "jpg"}, "label_pattern": r"(\d)$"}
    with closing(tar_source("tars", context=make_context(), **options)) as source:
        assert len(source.manifest.classes) == 10


def test_shards_of_webdatasets_own_writer_are_read():
    webdataset = pytest.importorskip("webdataset")
    records = encoded_records(6)
    with webdataset.ShardWriter("x-%02d.tar", maxcount=4, verbose=0) as writer:
        pairs = zip(records["image"], records["label"].tolist(), strict=True)
        for number, (image, label) in enumerate(pairs):
            writer.write({"__key__": f"{number:06}", "jpg": image, "cls": label})
    store = TarStore("x-*.tar")
    assert plain(store.read(torch.arange(6))) == plain(records)
