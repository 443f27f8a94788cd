import numpy as np
import pytest
from paceline_examples import photo_shapes
from paceline_examples.photo_shapes import CLASSES, detect_scenes, segment_scenes

from framework.errors import ConfigError


def segment(item, split="train", size=48, most=4):
    (record,) = segment_scenes(item, split, size, most)
    return record


def detect(item, split="train", size=48, most=4):
    (record,) = detect_scenes(item, split, size, most)
    return record


def test_an_image_and_its_label_map_have_one_size():
    record = segment(0)
    assert (record["image"].shape, record["image"].dtype) == ((48, 48, 3), np.uint8)
    assert (record["mask"].shape, record["mask"].dtype) == ((48, 48), np.uint8)


def test_every_class_occurs_and_outlines_have_none():
    values = {int(value) for item in range(40) for value in np.unique(segment(item)["mask"])}
    assert values == {*range(len(CLASSES) + 1), 255}


@pytest.mark.parametrize("item", range(12))
def test_the_box_is_around_the_shape_of_the_same_scene(item):
    mask, scene = segment(item, most=1)["mask"], detect(item, most=1)
    assert set(mask[(mask > 0) & (mask < 255)].tolist()) == {x + 1 for x in scene["label"].tolist()}
    for left, top, right, bottom in scene["boxes"].astype(int):
        rows, columns = np.nonzero(mask)  # with the outline, whose outer half is outside of the box
        around = [left - columns.min(), top - rows.min(), columns.max() + 1 - right]
        assert {*around, rows.max() + 1 - bottom} <= {0, 1}


def test_there_are_scenes_with_no_shape_and_with_the_most():
    counts = [len(detect(item, most=3)["boxes"]) for item in range(40)]
    assert (min(counts), max(counts)) == (0, 3)


def test_the_same_item_is_the_same_scene_and_others_are_not():
    assert np.array_equal(segment(3)["image"], segment(3)["image"])
    for other in (segment(4), segment(3, split="val")):
        assert not np.array_equal(segment(3)["image"], other["image"])


@pytest.mark.parametrize(("split", "color"), [("train", 40), ("val", 200)])
def test_splits_show_different_parts_of_the_photographs(monkeypatch, split, color):
    photograph = np.full((60, 150, 3), 40, np.uint8)
    photograph[:, 100:] = 200
    monkeypatch.setattr(photo_shapes, "_photographs", lambda: [photograph, photograph])
    images = np.stack([segment(item, split, most=0)["image"] for item in range(20)])
    assert np.abs(images.astype(int) - color).max() < 40  # the noise


def test_an_unknown_split_is_refused():
    with pytest.raises(ConfigError, match=r"C116.*split = test"):
        segment(0, split="test")
