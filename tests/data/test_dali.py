import numpy as np
import pytest
import torch

from framework.data.dali import dali_source
from framework.data.hdf5 import hdf5_source
from framework.errors import ConfigError, DataError
from framework.transform import compose, random_resized_crop
from framework.transform.resize import Resize
from framework.transform.rotate import Rotate
from tests.conftest import make_context, make_records, write_store
from tests.contract.cases import IMAGE_FIELDS, jpeg, make_source

CROP = random_resized_crop.RandomResizedCrop([8, 8], [0.3, 1.0], [0.75, 1.33], 0.5, 0.0, True)


def dali(path, context):
    return dali_source(path, 2, context=context)


def write_images(images):
    return write_store("x.h5", {"image": images, "label": np.arange(len(images))}, IMAGE_FIELDS)


@pytest.fixture
def make():
    """Yield a function that makes a source of a choice, DALI's if not said, to be closed."""
    made = []

    def source(path, choice=dali, **options):
        made.append(choice(path, context=make_context(**options)))
        return made[-1]

    yield source
    for item in made:
        item.close()


@pytest.mark.parametrize(
    "transform",
    [None, Resize([8, 8], True, True), Resize([32, 32], True, True), CROP],
    ids=["none", "smaller", "larger", "crop"],
)
def test_decoded_images_are_those_of_the_other_sources_within_a_tolerance(make, transform):
    path = write_images([jpeg(number, 20, 24) for number in range(6)])
    pair = [make(path, choice, transform=transform) for choice in (dali, hdf5_source)]
    for batches in zip(*(source.batches(1) for source in pair), strict=True):
        decoded, expected = (micro.batch for micro in batches)
        assert torch.equal(decoded["index"], expected["index"])
        assert torch.equal(decoded["label"], expected["label"])
        assert decoded["image"].shape == expected["image"].shape
        difference = (decoded["image"].int() - expected["image"].int()).abs().float()
        # A JPEG is decoded at half its size if that covers the window. The window is then rounded
        # to the pixels of that size.
        assert float(difference.mean()) < 6


def test_images_of_different_sizes_are_refused_but_fit_once_they_are_scaled(make):
    path = write_images([jpeg(0), jpeg(1, 30, 20), jpeg(2)])
    scaled = make(path, transform=Resize([8, 8], True, True))
    assert next(scaled.batches(0)).batch["image"].shape == (3, 3, 8, 8)
    with pytest.raises(DataError, match=r"D10[67].*x\.h5"):
        list(make(path).batches(0))


@pytest.mark.parametrize("place", [0, 4, 9])
@pytest.mark.parametrize("transform", [None, CROP], ids=["none", "crop"])
def test_a_bad_image_is_named(make, place, transform):
    for bad in (b"text", b"", b"\xff\xd8\xff broken", jpeg(0)[:300]):
        images = [jpeg(number) for number in range(10)]
        images[place] = bad
        source = make(write_images(images), batch_size=3, transform=transform)
        words = rf"D106.*x\.h5: record {place}\b.*not a readable image"
        with pytest.raises(DataError, match=words):
            list(source.batches(0))


def test_images_that_are_turned_must_be_cut_square():
    turned = compose.ComposeTransform({"turn": Rotate([1]), "size": Resize([8, 6], True, True)})
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
