import numpy as np
import pytest
import torch

from framework.data.dali import dali_source
from framework.data.hdf5 import hdf5_source
from framework.errors import ConfigError, DataError
from framework.transform.compose import ComposeTransform
from framework.transform.random_resized_crop import RandomResizedCrop
from framework.transform.resize import Resize
from framework.transform.rotate import Rotate
from tests.conftest import make_context, make_records, write_store
from tests.contract.cases import IMAGE_FIELDS, jpeg, make_source, micros

CROP = RandomResizedCrop([8, 8], [0.3, 1.0], [0.75, 1.33], 0.5, 0.0, True)


def _images(images, **options):
    """Write a store of these images, and return (DALI's source, ours) over it."""
    path = write_store("x.h5", {"image": images, "label": np.arange(len(images))}, IMAGE_FIELDS)
    return dali_source(path, 2, context=make_context(**options)), hdf5_source(
        path, context=make_context(**options)
    )


@pytest.mark.parametrize("suffix", ["h5", "lmdb"])
def test_raw_records_are_those_of_the_other_sources(suffix):
    path = write_store(f"x.{suffix}", make_records(10))
    dali, expected = dali_source(path, 2, context=make_context()), make_source("hdf5", 10)
    for epoch in range(3):
        assert micros(dali, epoch) == micros(expected, epoch)
    dali.close()
    expected.close()


@pytest.mark.parametrize(
    "transform", [None, Resize([8, 8], True, True), Resize([32, 32], True, True), CROP]
)
def test_decoded_images_are_those_of_the_other_sources_within_a_tolerance(transform):
    pair = _images([jpeg(number, 20, 24) for number in range(6)], transform=transform)
    for dali, expected in zip(pair[0].batches(1), pair[1].batches(1), strict=True):
        assert torch.equal(dali.batch["index"], expected.batch["index"])
        assert torch.equal(dali.batch["label"], expected.batch["label"])
        difference = (dali.batch["image"].int() - expected.batch["image"].int()).abs().float()
        assert dali.batch["image"].shape == expected.batch["image"].shape
        # A JPEG is decoded at half its size if that covers the window. The window is then rounded
        # to the pixels of that size.
        assert float(difference.mean()) < 6
    for source in pair:
        source.close()


def test_images_of_different_sizes_fit_once_they_are_scaled():
    dali, ours = _images([jpeg(0), jpeg(1, 30, 20), jpeg(2)], transform=Resize([8, 8], True, True))
    assert next(dali.batches(0)).batch["image"].shape == (3, 3, 8, 8)
    dali.close()
    ours.close()


@pytest.mark.parametrize("bad", [b"text", b"", b"\xff\xd8\xff broken"])
def test_bytes_that_are_no_image_are_named(bad):
    dali, ours = _images([jpeg(0), bad, jpeg(1)])
    with pytest.raises(DataError, match=r"D106.*x\.h5: record 1"):
        list(dali.batches(0))
    dali.close()
    ours.close()


@pytest.mark.parametrize("place", [0, 4, 9])
@pytest.mark.parametrize("transform", [None, CROP])
def test_a_truncated_image_is_named(place, transform):
    images = [jpeg(number) for number in range(10)]
    images[place] = images[place][:300]
    dali, ours = _images(images, batch_size=3, transform=transform)
    with pytest.raises(DataError, match=rf"D106.*x\.h5: record {place}\b.*not a readable image"):
        list(dali.batches(0))
    dali.close()
    ours.close()


def test_what_only_dali_refuses_names_the_batch():
    dali, ours = _images([jpeg(number) for number in range(6)])
    order = list(dali.order.shares(0))
    error = dali._explain(RuntimeError("out of luck"), order)
    assert str(error).startswith("error[D106]: ")
    assert "DALI could not make this record's batch (out of luck)" in str(error)
    dali.close()
    ours.close()


def test_images_of_different_sizes_are_a_data_error():
    dali, ours = _images([jpeg(0), jpeg(1, 30, 20), jpeg(2)])
    with pytest.raises(DataError, match=r"D10[67].*x\.h5"):
        list(dali.batches(0))
    dali.close()
    ours.close()


def test_a_sample_between_epochs_leaves_the_next_epoch_whole():
    source = make_source("dali", 10)
    expected = micros(source, 1)
    micros(source, 0)
    assert source.sample(3)["index"].tolist() == [0, 4, 9]
    assert micros(source, 1) == expected
    source.close()


def test_after_an_early_end_the_next_epoch_has_no_stale_batches():
    source = make_source("dali", 20)
    expected = micros(source, 1)
    batches = source.batches(0)
    next(batches)
    batches.close()
    assert micros(source, 1) == expected
    source.close()


def test_a_batch_survives_the_next_run():
    source = make_source("dali", 20)
    batches = source.batches(0)
    first = next(batches).batch
    copy = {name: tensor.clone() for name, tensor in first.items()}
    list(batches)
    assert all(torch.equal(first[name], copy[name]) for name in copy)
    source.close()


def test_images_that_are_turned_must_be_cut_square():
    turned = ComposeTransform({"turn": Rotate([1]), "size": Resize([8, 6], True, True)})
    with pytest.raises(ConfigError, match=r"C174.*8 x 6.*cut squares"):
        make_source("dali_images", 4, transform=turned)


def test_records_are_verified_until_a_pass_has_come_to_its_end(monkeypatch):
    checked = []
    count = lambda store, indices, records: checked.append(len(indices))  # noqa: E731
    monkeypatch.setattr("framework.data.dali.check_crcs", count)
    path = write_store("x.h5", make_records(8))
    source = dali_source(path, 2, context=make_context(verify="first_epoch"))
    for _ in range(2):
        batches = source.batches(0)
        next(batches)
        next(batches)
        batches.close()  # as a loop that breaks after its last batch
        assert sum(checked) == 8
    source.close()
