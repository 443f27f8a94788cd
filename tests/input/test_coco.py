"""Annotations of COCO become fields of any length."""

import json
from pathlib import Path

import numpy as np
import pytest

from framework.errors import ConfigError, DataError
from framework.input.coco import CocoInput, painted
from framework.media.decode import decode_labels
from tests.contract.cases import jpeg

SQUARE = [[2.0, 1.0, 6.0, 1.0, 6.0, 4.0, 2.0, 4.0]]
CATEGORIES = [{"id": 18, "name": "dog"}, {"id": 3, "name": "car"}]


def _object(number, image, box, category=18, **more):
    x, y, width, height = box
    polygon = [x, y, x + width, y, x + width, y + height, x, y + height]
    known = {"id": number, "image_id": image, "category_id": category}
    return {**known, "bbox": list(box), "segmentation": [polygon], **more}


OBJECTS = [
    _object(1, 7, (2, 1, 4, 3)),
    _object(2, 7, (-5, 2, 100, 3), 3),
    _object(3, 7, (50, 50, 5, 5)),
    _object(4, 7, (0, 0, 5, 5), iscrowd=1),
]


def write_coco(objects=OBJECTS, categories=CATEGORIES, names=("a.jpg", "b.jpg"), **changes):
    """Write two 16 x 12 images, one without objects, and their COCO file. Return its path."""
    for number, name in enumerate(names):
        Path("images", name).parent.mkdir(parents=True, exist_ok=True)
        Path("images", name).write_bytes(jpeg(number))
    images = [
        {"id": number, "file_name": name, "height": 16, "width": 12}
        for number, name in zip((7, 5), names, strict=True)
    ]
    about = {"images": images, "categories": categories, "annotations": objects, **changes}
    Path("coco.json").write_text(json.dumps(about))
    return "coco.json"


def coco(path="coco.json", fields=("boxes", "label"), **options):
    return CocoInput(path, "images", list(fields), **options)


def test_boxes_are_clipped_and_those_outside_are_left_out():
    source = coco(write_coco())
    records, keys = source.read(0, 2)
    assert keys == ["a.jpg", "b.jpg"]
    assert records["image"] == [jpeg(0), jpeg(1)]
    assert [boxes.tolist() for boxes in records["boxes"]] == [[[2, 1, 6, 4], [0, 2, 12, 5]], []]
    assert [(boxes.dtype, boxes.shape[1]) for boxes in records["boxes"]] == [(np.float32, 4)] * 2
    assert "(1 crowds, 1 boxes without area left out)" in source.manifest.source


def test_classes_are_numbered_in_the_order_of_their_ids():
    source = coco(write_coco())
    assert source.manifest.classes == ["car", "dog"]
    assert [labels.tolist() for labels in source.read(0, 2).records["label"]] == [[1, 0], []]
    assert source.manifest.fields["label"].shape == (None,)
    named = coco(classes=["dog", "cat", "car"])
    assert named.read(0, 1).records["label"][0].tolist() == [0, 2]
    with pytest.raises(DataError, match=r"D161.*dog"):
        _ = coco(classes=["car"]).manifest


def test_a_mask_has_background_classes_and_crowds():
    objects = [*OBJECTS, _object(5, 5, (2, 1, 4, 3), segmentation=SQUARE)]
    source = coco(write_coco(objects), ["mask"])
    assert source.manifest.classes == []
    assert source.manifest.label_maps == ("mask",)
    first, second = (decode_labels(data)[:, :, 0] for data in source.read(0, 2).records["mask"])
    assert (first[2, 4], first[4, 9], first[0, 0], first[15, 11]) == (2, 1, 255, 0)
    assert set(np.unique(second).tolist()) == {0, 2}


def test_keypoints_have_one_row_for_each_object():
    categories = [{"id": 1, "name": "person", "keypoints": ["nose", "ear"]}]
    objects = [
        _object(1, 7, (0, 0, 4, 4), 1, keypoints=[1, 2, 2, 0, 0, 0]),
        _object(2, 7, (0, 0, 4, 4), 1),
    ]
    source = coco(write_coco(objects, categories), ["boxes", "keypoints"])
    first, second = source.read(0, 2).records["keypoints"]
    assert first.tolist() == [[[1, 2, 2], [0, 0, 0]], [[0, 0, 0]] * 2]
    assert second.shape == (0, 2, 3)
    assert source.manifest.fields["keypoints"].shape == (None, 2, 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"objects": [_object(9, 7, (0, 0, float("nan"), 1))]}, r"D193.*annotation 9"),
        ({"objects": [_object(9, 7, (0, 0, 1, 1), 99)]}, r"D193.*annotation 9"),
        ({"objects": [{"id": 9}]}, r"D193.*annotation 9"),
        ({"categories": [{"id": 1, "name": "\ud800"}]}, "D193.*UnicodeEncodeError"),
        ({"categories": [*CATEGORIES, {"id": 3, "name": "x"}]}, r"D193.*same id or name"),
        ({"images": []}, r"D110|D193"),
        ({"images": [{"id": 7, "file_name": "a.jpg", "height": 10**9, "width": 10**9}]}, "D193"),
    ],
)
def test_annotations_that_make_no_sense_are_named(changes, words):
    with pytest.raises(DataError, match=words):
        _ = coco(write_coco(**changes)).manifest


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 10**5, '{"images": 3}', "\xff"])
def test_what_is_no_coco_file_is_named(text):
    Path("coco.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"D193.*coco\.json: not COCO annotations"):
        _ = coco().manifest


@pytest.mark.parametrize(
    "options", [{"fields": []}, {"fields": ["box"]}, {"crowd": "no"}, {"empty": "no"}]
)
def test_options_are_checked(options):
    with pytest.raises(ConfigError, match="C162"):
        coco(write_coco(), **options)


def compressed(counts):
    """Return run lengths as COCO's compressed text."""
    text = ""
    for place, count in enumerate(counts):
        number = count - counts[place - 2] if place > 2 else count
        while True:
            bits = number & 31
            number >>= 5
            more = number != (-1 if bits & 16 else 0)
            text += chr(48 + (bits | 32 * more))
            if not more:
                break
    return text


def test_a_polygon_covers_its_pixels():
    mask = painted([(SQUARE, 1)], 6, 8)[0]
    assert mask[1:4, 2:6].all()
    assert mask.sum() <= 4 * 5  # at most a pixel more at each border


def test_run_lengths_go_down_the_columns():
    counts = [1, 2, 3, 1, 5]
    expected = np.array([[0, 0, 1, 0], [1, 0, 0, 0], [1, 0, 0, 0]])
    for form in (counts, compressed(counts)):
        region = {"size": [3, 4], "counts": form}
        assert (painted([(region, 1)], 3, 4) == expected).all()


@pytest.mark.parametrize(
    "region",
    [
        {"size": [3, 4], "counts": [1, 2]},
        {"size": [3, 4], "counts": [13, -1]},
        {"size": [3, 4], "counts": "\u20ac"},
        {"size": [3, 4], "counts": "o" * 100},
        *([[1, 2, 3, 4, 5]], [[0, 0, 1, float("inf"), 2, 2]], None),
    ],
    ids=range(7),
)
def test_values_that_are_no_region_are_refused(region):
    with pytest.raises(ValueError):  # noqa: PT011
        painted([(region, 1)], 3, 4)
