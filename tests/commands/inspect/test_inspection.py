import math
import os
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from framework.commands.inspect import inspection
from framework.commands.inspect.inspection import DARK, EDGE, TILE, describe, facts, write_grid
from framework.contracts.records import Field, Manifest, Shard
from framework.errors import DataError
from framework.media.decode import label_colors
from framework.store import file_store, hdf5_store
from framework.store.open_store import open_store
from tests.conftest import FIELDS, make_records, write_store
from tests.contract.cases import IMAGE_FIELDS, jpeg, write_case
from tests.pack.test_preparation import packed, pixels_of


def _close_with(manifest, records):
    """Write a store at x.h5 with this manifest, and return its path."""
    writer = hdf5_store.HDF5Writer("x.h5", fields=manifest.fields, num_records=manifest.num_records)
    writer.write(records, [str(number) for number in range(manifest.num_records)])
    writer.close(manifest)
    return "x.h5"


def _directory(files, num_records=4):
    """Write a store that is a directory of equal files, and return its path."""
    os.mkdir("store")
    path = write_store("store/000000.h5", make_records(num_records))
    manifest = open_store(path).manifest
    shards = []
    for number in range(files):
        Path(f"store/{number:06d}.h5").write_bytes(Path(path).read_bytes())
        size = Path(path).stat().st_size
        shards.append(Shard(f"{number:06d}.h5", num_records, size, "ab" * 32, manifest.digest))
    Path("store/manifest.json").write_text(
        file_store.to_json(replace(manifest, num_records=files * num_records, shards=shards))
    )
    return "store"


@pytest.mark.parametrize("kind", ["hdf5", "lmdb"])
def test_a_store_is_described_by_records_fields_and_classes(kind):
    path, _ = write_case(kind, 5)
    lines = list(describe(facts(path)))
    assert lines[0] == f"{path}: 5 records, {Path(path).stat().st_size:,} bytes, schema 6"
    assert lines[1:] == [
        "source: a test",
        f"digest: sha256 {open_store(path).manifest.digest}",
        "field image: raw uint8 3x4x4, 48 bytes a record, 240 in all",
        "field label: raw int64 scalar, 8 bytes a record, 40 in all",
        *("class 0: a", "class 1: b", "class 2: c"),
    ]


@pytest.mark.parametrize("kind", ["hdf5_images", "lmdb_images"])
def test_image_files_are_described_by_their_bytes_and_pixels(kind):
    path, records = write_case(kind, 5)
    lengths = [len(data) for data in records["image"]]
    words = (
        f"{np.mean(lengths):,.0f} bytes a record ({min(lengths):,} to {max(lengths):,}), "
        f"{sum(lengths):,} in all"
    )
    assert f"field image: image uint8 3x?x?, {words}, all 16 x 12 pixels" in describe(facts(path))


def test_of_a_large_store_a_sample_is_looked_at_and_that_is_said(monkeypatch):
    path, records = write_case("hdf5_images", 9)
    monkeypatch.setattr(inspection, "EXACT_BYTES", 100)
    monkeypatch.setattr(inspection, "NUM_SAMPLES", 3)
    lengths = [len(records["image"][number]) for number in (0, 4, 8)]
    line = next(line for line in describe(facts(path)) if line.startswith("field image"))
    assert f"{np.mean(lengths):,.0f} bytes a record" in line
    assert f"about {np.mean(lengths) * 9:,.0f} in all (from a sample of 3)" in line


def test_fields_of_any_length_are_described_by_their_rows():
    path, records = write_case("hdf5_ragged", 5)
    lines = {line.split(":")[0]: line for line in describe(facts(path))}
    for name, field in open_store(path).manifest.fields.items():
        if field.encoding != "ragged":
            continue
        lengths = [len(value) for value in records[name]]
        words = f" a record ({min(lengths):,} to {max(lengths):,}), "
        row_bytes = np.dtype(field.dtype).itemsize * math.prod(field.row_shape)
        assert words + f"{sum(lengths) * row_bytes:,} in all" in lines[f"field {name}"]
        assert f"rows of {row_bytes} bytes" in lines[f"field {name}"] or row_bytes == 1
        assert facts(path)["ragged"][name]["record_rows"]["max"] == max(lengths)


def test_sizes_that_differ_are_reported_and_files_that_are_no_images_counted():
    files = [jpeg(0, 20, 30), jpeg(1, 10, 50), b"text"]
    path = write_store("x.h5", {"image": files, "label": np.arange(3)}, IMAGE_FIELDS)
    assert any(
        line.endswith(", 10 to 20 pixels high, 30 to 50 wide, 1 not readable")
        for line in describe(facts(path))
    )


def test_options_are_reported_and_classes_are_a_histogram():
    manifest = Manifest(
        3, FIELDS, ["a", "long", "c"], [2, 1, 0], "here", {"encode": "raw", "size": None}
    )
    lines = list(describe(facts(_close_with(manifest, make_records(3)))))
    assert "options: encode=raw, size=None" in lines
    assert lines[-3:] == [
        f"class 0: a     2 records  {'#' * 40}",
        f"class 1: long  1 records  {'#' * 20}",
        "class 2: c     0 records",
    ]


@pytest.mark.parametrize("files", [2, 12])
def test_a_directory_is_described_with_its_files(files):
    path = _directory(files)
    lines = list(describe(facts(path)))
    size = sum(entry.stat().st_size for entry in Path(path).iterdir())
    assert lines[0] == f"store: {files * 4} records, {size:,} bytes, schema 6"
    named = [line for line in lines if line.startswith("file 0000")]
    assert len(named) == min(files, 10)
    assert named[1].endswith(f"bytes, sha256 {'ab' * 32}")
    assert ("and 2 more files, 12 in all" in lines) == (files == 12)


@pytest.mark.parametrize("encode", ["jpeg", "raw"])
def test_frames_of_videos_are_counted(encode):
    packed(encode=encode).close()
    line = next(line for line in describe(facts("x.h5")) if line.startswith("field video"))
    assert "8.3 frames a record (5 to 12), 25 in all, all 32 x 48 pixels" in line
    known = facts("x.h5")["videos"]["video"]
    assert known["record_frames"] == {"mean": 25 / 3, "min": 5, "max": 12}
    assert (known["height"], known["num_unreadable"]) == ([32, 32], 0)


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
