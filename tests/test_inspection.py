from pathlib import Path

import cv2
import numpy as np
import pytest

from framework.contracts import Field, Manifest
from framework.data.hdf5 import HDF5Writer
from framework.errors import DataError
from framework.inspection import EDGE, GRAY, TILE, describe, write_grid
from tests.conftest import FIELDS, make_records, write_store
from tests.contract.cases import IMAGE_FIELDS, jpeg, write_case


def _grid(path, count=4):
    assert write_grid(path, Path("grid.png"), count)
    return cv2.imread("grid.png")


@pytest.mark.parametrize("kind", ["hdf5", "lmdb"])
def test_a_store_is_described_by_records_fields_and_classes(kind):
    path, _ = write_case(kind, 5)
    lines = list(describe(path))
    assert lines[0] == f"{path}: 5 records, {Path(path).stat().st_size:,} bytes, schema 1"
    assert lines[1:] == [
        "source: a test",
        "field image: raw uint8 3x4x4, 48 bytes a record, about 240 in all",
        "field label: raw int64 scalar, 8 bytes a record, about 40 in all",
        "class 0: a",
        "class 1: b",
        "class 2: c",
    ]


@pytest.mark.parametrize("kind", ["hdf5_images", "lmdb_images"])
def test_image_files_are_described_by_their_mean_size(kind):
    path, records = write_case(kind, 5)
    mean = np.mean([len(data) for data in records["image"]])
    assert f"field image: image uint8 3x?x?, {mean:,.0f} bytes a record, about {mean * 5:,.0f} in all" in list(describe(path))


def test_options_and_class_counts_are_told_where_there_are_some():
    writer = HDF5Writer("x.h5", fields=FIELDS, num_records=3)
    writer.write(make_records(3))
    writer.close(Manifest(3, FIELDS, ["a", "b"], [2, 1], "here", {"encode": "raw", "size": None}))
    lines = list(describe("x.h5"))
    assert "options: encode=raw, size=None" in lines
    assert lines[-2:] == ["class 0: a  2 records", "class 1: b  1 records"]


@pytest.mark.parametrize("kind", ["hdf5", "lmdb_images"])
@pytest.mark.parametrize(("count", "rows", "columns"), [(1, 1, 1), (2, 1, 2), (4, 2, 2), (5, 2, 3), (99, 3, 3)])
def test_a_grid_shows_as_many_images_as_asked_or_there_are(kind, count, rows, columns):
    assert _grid(write_case(kind, 7)[0], count).shape == (rows * TILE, columns * TILE, 3)


def test_a_grid_shows_the_pixels_in_their_colors():
    image = np.zeros((1, 3, 4, 4), np.uint8)
    image[0, 0] = 200  # red
    path = write_store("x.h5", {"image": image, "label": np.zeros(1, np.int64)})
    assert np.all(_grid(path)[EDGE:-EDGE, EDGE:-EDGE, ::-1] == [200, 0, 0])


def test_an_image_is_not_distorted():
    image = np.full((1, 3, 4, 8), 255, np.uint8)
    grid = _grid(write_store("x.h5", {"image": image}, {"image": Field("uint8", (3, 4, 8))}))
    assert grid[EDGE : TILE // 2, EDGE:-EDGE].min() == 255
    assert np.all(grid[TILE // 2 :] == GRAY)


def test_gray_images_are_shown():
    image = np.full((2, 1, 4, 4), 99, np.uint8)
    grid = _grid(write_store("x.h5", {"image": image}, {"image": Field("uint8", (1, 4, 4))}))
    assert np.all(grid[EDGE : TILE - EDGE, EDGE : TILE - EDGE] == 99)


def test_a_store_without_images_makes_no_grid():
    path = write_store("x.h5", {"x": np.zeros((3, 2), np.float32)}, {"x": Field("float32", (2,))})
    assert not write_grid(path, Path("grid.png"), 4)
    assert not Path("grid.png").exists()


@pytest.mark.parametrize("look", [lambda path: list(describe(path)), lambda path: write_grid(path, Path("grid.png"), 4)])
def test_a_file_that_is_no_store_is_named(look):
    Path("x.h5").write_bytes(b"just text")
    with pytest.raises(DataError, match=r"D102.*x\.h5"):
        look("x.h5")


def test_a_bad_image_in_a_store_is_named():
    path = write_store("x.h5", {"image": [jpeg(0), b"text", jpeg(1)], "label": np.arange(3)}, IMAGE_FIELDS)
    with pytest.raises(DataError, match=r"D106.*x\.h5: record 1"):
        write_grid(path, Path("grid.png"), 3)
