"""What each choice of the group ``data`` adds: where records are kept, and how they are found."""

import os
import shutil
from contextlib import closing
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from framework.contracts.records import notes_of
from framework.data import folder, hdf5, lmdb, parquet
from framework.data.mixture import mixture_source
from framework.data.synthetic import SyntheticSource
from framework.errors import ConfigError, DataError, ResourceError
from framework.store.staging import MEMORY, cached_share
from framework.transform.flip import FlipTransform
from tests.conftest import make_context, make_records, write_store
from tests.contract.cases import encoded_records, micros, write_parquet
from tests.store.test_open_store import write_directory

PACKED = {"h5": hdf5.hdf5_source, "lmdb": lmdb.lmdb_source}


@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize("stage", ["ram", "device"])
@pytest.mark.parametrize("shape", ["file", "directory"])
def test_batches_are_the_same_wherever_records_are_kept(suffix, stage, shape):
    if shape == "file":
        path = write_store(f"x.{suffix}", make_records(20))
    else:
        path = write_directory("x", [7], suffix)
    source = PACKED[suffix]
    alone, staged = (source(path, where, context=make_context()) for where in ("none", stage))
    assert micros(staged) == micros(alone)
    alone.close()
    staged.close()


def test_a_cold_store_is_read_from_the_disk():
    home = Path(f"/var/tmp/paceline-test-{os.getpid()}")
    home.mkdir()
    try:
        path = write_store(str(home / "x.h5"), make_records(200))
        with open(path, "ab") as file:
            os.fsync(file.fileno())
        with closing(hdf5.hdf5_source(path, "none", context=make_context())) as warm:
            expected = micros(warm)
        try:
            cold = hdf5.hdf5_source(path, "cold", context=make_context())
        except ResourceError as error:
            pytest.skip(f"this file system keeps its pages: {error}")
        assert micros(cold) == expected
        cold.close()
        assert cached_share([path]) > 0.9  # it was read
    finally:
        shutil.rmtree(home)


def test_an_unknown_stage_and_a_transform_on_the_device_are_refused():
    path = write_store("x.h5", make_records(9))
    with pytest.raises(ConfigError, match=r"C172.*data\.stage = disk"):
        hdf5.hdf5_source(path, "disk", context=make_context())
    with pytest.raises(ConfigError, match=r"C171.*a transform works on the host"):
        hdf5.hdf5_source(path, "device", context=make_context(transform=FlipTransform(0.5, 0.0)))
    with pytest.raises(ConfigError, match=r"C171.*needs no workers"):
        hdf5.hdf5_source(path, "device", context=make_context(num_workers=1))


def test_memory_is_given_back_by_a_close_and_by_an_error():
    before = set(MEMORY.glob("paceline-*"))
    source = hdf5.hdf5_source(write_store("x.h5", make_records(20)), "ram", context=make_context())
    assert len(set(MEMORY.glob("paceline-*")) - before) == 2
    source.close()
    with pytest.raises(DataError, match="D109"):
        hdf5.hdf5_source(write_store("y.h5", make_records(0)), "ram", context=make_context())
    assert set(MEMORY.glob("paceline-*")) <= before


def test_only_random_order_over_more_parquet_than_the_cache_gets_a_note():
    records = {"image": encoded_records(40)["image"] * 40, "label": list(range(3)) * 533 + [0]}
    write_parquet("x.parquet", records)
    for options, is_noted in (({}, True), ({"block": 3}, False), ({"training": False}, False)):
        context = make_context(**options)
        with closing(parquet.parquet_source("x.parquet", cache_mb=1, context=context)) as source:
            assert bool(notes_of(source)) == is_noted


def test_each_subfolder_is_a_class_and_links_are_followed_below_a_named_folder():
    for name in ("elsewhere/a/0", "images/a/0", "images/a/2", "images/b/1"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(f"{name}.png", np.zeros((4, 4, 3), np.uint8))
    Path("images/a/linked.png").symlink_to(Path("elsewhere/a/0.png").absolute())
    for options, expected in (({}, [0, 0, 1]), ({"follow_links": "."}, [0, 0, 0, 1])):
        context = make_context(batch_size=4, training=False)
        with closing(folder.folder_source("images", context=context, **options)) as source:
            labels = torch.cat([micro.batch["label"] for micro in source.batches(0)]).tolist()
        assert labels == expected


@pytest.fixture
def paths():
    """Write a store of 60 records and one of 20, and return their paths."""
    return {
        "web": write_store("web.h5", make_records(60)),
        "books": write_store("books.lmdb", make_records(20)),
    }


def mixture(paths, weights=None, temperature=1.0, **options):
    return mixture_source(paths, weights, temperature, context=make_context(**options))


def records_of(source, epoch=0):
    """Return the records of an epoch without fillers, and close the source."""
    with closing(source):
        return torch.tensor(
            [i for batch, weight, _ in micros(source, epoch) if weight for i in batch["index"]]
        )


def test_without_weights_every_record_comes_once(paths):
    source = mixture(paths)
    assert records_of(source).sort().values.tolist() == list(range(80))


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (1, 3)])
def test_stores_have_their_share_of_an_epoch_exactly(paths, seed, epoch):
    records = records_of(mixture(paths, {"web": 1, "books": 3}, seed=seed), epoch)
    counts = torch.bincount(records, minlength=80)
    assert (int(counts[:60].sum()), int(counts[60:].sum())) == (20, 60)
    assert counts[:60].max() == 1
    assert set(counts[60:].tolist()) == {3}


@pytest.mark.parametrize(
    ("weights", "options", "words"),
    [
        ({"web": 1}, {}, "each of web, books"),
        ({"web": 1, "book": 1}, {}, "each of web, books"),
        ({"web": -1, "books": 1}, {}, "each of web, books"),
        ({"web": 0, "books": 0}, {}, "each of web, books"),
        ({"web": 1, "books": 1}, {"temperature": 2}, r"would ignore data\.temperature=2"),
        ({"web": 1, "books": 1}, {"block": 4}, "order=full"),
    ],
    ids=["too few", "another name", "negative", "zero", "temperature", "blocks"],
)
def test_weights_and_options_that_do_not_fit_the_stores_are_refused(paths, weights, options, words):
    with pytest.raises(ConfigError, match=rf"C203.*{words}"):
        mixture(paths, weights, **options)


def synthetic(num_records=20, shape=(3, 4, 5), **options):
    return SyntheticSource("no/such/file", shape, 7, num_records, context=make_context(**options))
