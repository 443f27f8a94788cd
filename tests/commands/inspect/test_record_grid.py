from pathlib import Path

import cv2
import numpy as np
import pytest

from framework.commands.inspect.record_grid import DARK, EDGE, TILE, write_grid
from framework.contracts.records import Field
from framework.errors import DataError
from framework.media.label_map import label_colors
from tests.conftest import write_store
from tests.contract.cases import IMAGE_FIELDS, jpeg, write_case
from tests.pack.test_recordings import packed, pixels_of


def _grid(path, count=4):
    assert write_grid(path, Path("grid.png"), count)
    return cv2.imread("grid.png")[:, :, ::-1]


@pytest.mark.parametrize("kind", ["hdf5", "lmdb_images"])
@pytest.mark.parametrize(
    ("count", "rows", "columns"), [(1, 1, 1), (2, 1, 2), (4, 2, 2), (5, 2, 3), (99, 3, 3)]
)
def test_a_grid_shows_as_many_images_as_asked_or_there_are(kind, count, rows, columns):
    assert _grid(write_case(kind, 7)[0], count).shape == (rows * TILE, columns * TILE, 3)


def test_a_grid_shows_the_pixels_in_their_colors():
    image = np.zeros((1, 3, 4, 4), np.uint8)
    image[0, 0] = 200  # red
    path = write_store("x.h5", {"image": image, "label": np.zeros(1, np.int64)})
    assert np.all(_grid(path)[EDGE:-EDGE, EDGE:-EDGE] == [200, 0, 0])


@pytest.mark.parametrize(("dtype", "factor"), [("uint8", 1), ("uint16", 257)])
def test_gray_images_of_eight_and_sixteen_bits_are_shown(dtype, factor):
    image = np.full((2, 1, 4, 4), 99 * factor, dtype)
    grid = _grid(write_store("x.h5", {"image": image}, {"image": Field(dtype, (1, 4, 4))}))
    assert np.all(grid[EDGE : TILE - EDGE, EDGE : TILE - EDGE] == 99)


@pytest.mark.parametrize("shape", [(8,), (1000,), (2, 50), (1, 16000)])
def test_series_of_numbers_are_drawn_as_curves(shape):
    x = np.broadcast_to(np.linspace(-1, 1, shape[-1], dtype=np.float32), (3, *shape)).copy()
    grid = _grid(write_store("x.h5", {"x": x}, {"x": Field("float32", shape)}))
    plot = grid[EDGE : TILE - EDGE, EDGE : TILE - EDGE].max(axis=2) > DARK + 60
    assert plot[-1, 0]
    assert plot[0, -1]  # the curve rises from the lower left to the upper right
    assert not plot[0, 0]
    assert plot.any(axis=0).all()


def test_a_bad_image_in_a_store_is_named():
    path = write_store(
        "x.h5", {"image": [jpeg(0), b"text", jpeg(1)], "label": np.arange(3)}, IMAGE_FIELDS
    )
    with pytest.raises(DataError, match=r"D106.*x\.h5: record 1"):
        write_grid(path, Path("grid.png"), 3)


def test_a_label_map_has_a_color_for_each_class():
    fields = {"label": Field("uint8", (1, 4, 4), kind="labels")}
    path = write_store("x.h5", {"label": np.full((1, 1, 4, 4), 3, np.uint8)}, fields)
    assert np.all(_grid(path)[EDGE:-EDGE, EDGE:-EDGE] == label_colors()[3])


@pytest.mark.parametrize("encode", ["png", "raw"])
def test_a_video_is_shown_by_its_middle_frame(encode):
    store = packed(encode=encode)
    middle = pixels_of(store, 2)[6]
    store.close()
    tile = _grid("x.h5", 3)[TILE:, :TILE]
    assert np.all(tile[TILE // 2, TILE - EDGE - 10 : TILE - EDGE] == middle[16, 40])
