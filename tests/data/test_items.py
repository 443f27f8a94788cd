from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image

from framework.contracts.records import Field
from framework.data.collate import with_nested
from framework.data.items import ItemForm, alike, check_names, fields_of, record_of, stacked
from framework.errors import ConfigError, DataError


@dataclass
class Clip:
    wave: torch.Tensor
    text: str


Pair = namedtuple("Pair", "image label")  # noqa: PYI024  # as a user may write it
WAVE = torch.zeros(3)


def name(place):
    return f"record {place}"


@pytest.mark.parametrize(
    ("item", "names"),
    [
        ({"image": 1, "label": 2}, None),
        (Pair(1, 2), None),
        ((1, 2), ["image", "label"]),
        ([1, 2], ["image", "label"]),
        ({"image": 1, "other": 0, "label": 2}, ["image", "label"]),
    ],
)
def test_an_item_of_any_form_becomes_a_record(item, names):
    assert record_of(item, names, "record 0") == {"image": 1, "label": 2}


def test_a_dataclass_keeps_its_values():
    assert record_of(Clip(WAVE, "a"), None, "")["wave"] is WAVE


def test_a_single_value_has_a_single_name():
    assert record_of(WAVE, ["wave"], "") == {"wave": WAVE}


@pytest.mark.parametrize(
    ("item", "names", "words"),
    [
        ((1, 2), None, r"tuple of 2 values without names; .*'data.fields=\[image,label\]'"),
        ((1, 2, 3), None, r"data.fields=\[image,label,field2\]"),
        ((1, 2, 3), ["a", "b"], "has 3 values, but data.fields names 2"),
        (None, None, "is a NoneType, which has no fields"),
        (None, ["a"], "is a NoneType, which has no fields"),
        (WAVE, None, "is a Tensor, which has no fields"),
        ({"a": 1}, ["b"], "has no field 'b', only a"),
    ],
)
def test_an_item_without_fields_is_refused(item, names, words):
    with pytest.raises(DataError, match=rf"D230\]: record 7: .*{words}"):
        record_of(item, names, "record 7")


@pytest.mark.parametrize("names", ["image", [], [1], ["a", "a"], [""], {"a": 1}])
def test_names_are_a_list_of_different_names(names):
    with pytest.raises(ConfigError, match=r"C232\]: data.fields"):
        check_names(names)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([True, False], torch.bool),
        ([1, 2], torch.int64),
        ([1, 2.5], torch.float64),
        ([np.float32(1), np.float32(2)], torch.float32),
        ([np.array([1], ">i2"), np.array([2], ">i2")], torch.int16),
        ([torch.zeros(2, dtype=torch.uint8)] * 2, torch.uint8),
        ([1j, 2j], torch.complex64),
    ],
)
def test_numbers_are_stacked(values, dtype):
    column = stacked([{"x": value} for value in values], name)["x"]
    assert (column.dtype, len(column)) == (dtype, 2)
    assert (
        column.tolist()
        == torch.stack([torch.as_tensor(np.asarray(v).tolist()) for v in values]).tolist()
    )


@pytest.mark.parametrize("value", ["text", b"bytes", None, {"boxes": WAVE}, object()])
def test_other_values_become_lists(value):
    assert stacked([{"x": value}] * 2, name)["x"] == [value, value]


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
@pytest.mark.parametrize("ragged", [(), ("image",)])
def test_images_of_pillow_become_pixels_in_planes(mode, channels, ragged):
    images = [Image.new(mode, (5, 4), color) for color in ("black", "white")]
    form = ItemForm(ragged=ragged, way="list")
    batch = stacked([{"image": image} for image in images], name, form)["image"]
    assert [tuple(pixels.shape) for pixels in batch] == [(channels, 4, 5)] * 2
    assert [int(pixels.min()) for pixels in batch] == [0, 255]


def test_channels_of_an_image_of_pillow_keep_their_order():
    image = Image.new("RGB", (2, 2), (1, 2, 3))
    assert stacked([{"image": image}], name)["image"][0, :, 0, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "images",
    [
        [Image.new("P", (5, 4))] * 2,
        [Image.new("L", (5, 4)), Image.new("L", (6, 4))],
        [Image.new("L", (5, 4)), Image.new("RGB", (5, 4))],
        [Image.new("L", (5, 4)), "no image"],
    ],
)
def test_images_of_pillow_that_differ_or_have_a_palette_stay_a_list(images):
    assert stacked([{"x": image} for image in images], name)["x"] == images


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (
            torch.zeros(3),
            torch.zeros(4),
            r"tensor of the shape \[4\], but a tensor of the shape \[3\]",
        ),
        (np.zeros(3), np.zeros((3, 1)), r"array of the shape \[3, 1\]"),
        (1, None, "x is a NoneType, but a number"),
        (None, 1, "x is a number, but a NoneType"),
        ("a", torch.zeros(1), "x is a tensor"),
    ],
)
def test_a_value_that_does_not_fit_names_its_record_and_the_way_out(first, second, words):
    with pytest.raises(DataError, match=rf"D232\]: record 1: .*{words}.*record 0"):
        stacked([{"x": first}, {"x": second}], name)


def test_a_number_that_torch_has_not_is_refused():
    with pytest.raises(DataError, match=r"D232\]: record 0: x cannot be stacked"):
        stacked([{"x": 1 << 70}], name)


def test_items_of_other_fields_are_refused():
    with pytest.raises(
        DataError, match=r"D231\]: record 1: has the fields a, c, but record 0 has a, b"
    ):
        stacked([{"a": 1, "b": 1}, {"a": 1, "c": 1}], name)


def test_fields_are_the_tensors_of_one_record():
    batch = stacked([{"image": torch.zeros(3, 4, 4, dtype=torch.uint8), "text": "a", "y": 1}], name)
    batch["half"] = torch.zeros(1, 3, dtype=torch.bfloat16)  # NumPy has none
    fields = {"image": Field("uint8", (3, 4, 4)), "y": Field("int64", ())}
    assert fields_of({"index": torch.tensor([0]), **batch}) == fields


@pytest.mark.parametrize(
    "item",
    [
        Clip(torch.tensor([1.0, float("nan")]), "a"),
        {"x": np.arange(3), "y": float("nan"), "z": [1, (2, "b")]},
        Pair(1, None),
    ],
)
def test_an_item_is_like_itself(item):
    assert alike(item, item)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Clip(WAVE, "a"), Clip(WAVE, "b")),
        (Clip(WAVE, "a"), Clip(WAVE + 1, "a")),
        (Image.new("L", (2, 2)), Image.new("L", (2, 2), 1)),
        ({"x": 1}, {"y": 1}),
        ((1, 2), (1, 2, 3)),
        (np.zeros(2), np.zeros(2, np.float32)),
    ],
)
def test_different_items_are_not_alike(first, second):
    assert not alike(first, second)


RAGGED = [{"x": np.ones((count, 2), np.float32), "y": count} for count in (2, 0, 1)]


def test_ragged_arrays_are_padded():
    batch = stacked(RAGGED, name, ItemForm(ragged=["x"]))
    assert (batch["x"].shape, batch["x_length"].tolist()) == ((3, 2, 2), [2, 0, 1])
    assert batch["x"].sum((1, 2)).tolist() == [4, 0, 2]


def test_ragged_arrays_become_nested_or_a_list():
    nested = with_nested(stacked(RAGGED, name, ItemForm(ragged=["x"], way="nested")))
    listed = stacked(RAGGED, name, ItemForm(ragged=["x"], way="list"))
    for batch in (nested, listed):
        assert [len(array) for array in batch["x"]] == [2, 0, 1]


def test_a_list_takes_images_of_any_size():
    images = [torch.zeros(3, 4, 5), torch.zeros(3, 6, 2)]
    form = ItemForm(ragged=["x"], way="list")
    assert stacked([{"x": image} for image in images], name, form)["x"] == images
    with pytest.raises(DataError, match=r"D232\]: record 1: .*set collate=list"):
        stacked([{"x": image} for image in images], name, ItemForm(ragged=["x"]))


@pytest.mark.parametrize("way", ["pad", "nested", "list"])
def test_a_ragged_field_has_rows_without_a_number(way):
    form = ItemForm(ragged=["x"], way=way)
    batch = stacked(RAGGED[:1], name, form)
    assert fields_of(batch, form) == {"x": Field("float32", (None, 2)), "y": Field("int64", ())}


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"y": 1}, r"D230\]: record 0: has no field 'x', only y; correct data.ragged"),
        ({"x": 1}, r"D232\]: record 0: x is a number, and data.ragged wants an array"),
        ({"x": "a"}, r"D232\]: record 0: x is a str, and data.ragged wants an array"),
        ({"x": WAVE, "x_length": 3}, r"D231\]: record 0: has a field 'x_length'"),
    ],
)
def test_what_cannot_be_ragged_is_refused(record, words):
    with pytest.raises(DataError, match=words):
        stacked([record], name, ItemForm(ragged=["x"]))
