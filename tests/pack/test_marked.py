from typing import Any

import numpy as np
import pytest

from framework.contracts.records import IGNORE, Chunk, Field, Manifest
from framework.errors import ConfigError, DataError
from framework.media.decode import decode_labels, encode_png
from framework.pack.marked import MarkedInput
from framework.pack.preparation import Preparation
from tests.contract.cases import jpeg, label_map, pixels
from tests.media.test_decode import png

NOISE = np.random.default_rng(0).integers(0, 256, (16, 12), np.uint8)


class Memory:
    """An input of these records."""

    def __init__(self, **records: Any) -> None:
        self.records = records
        fields = {name: _field(values) for name, values in records.items()}
        self.manifest = Manifest(len(next(iter(records.values()))), fields, source="memory")

    def read(self, start, stop):
        return Chunk(
            {name: values[start:stop] for name, values in self.records.items()},
            [f"k{n}" for n in range(start, stop)],
        )

    def name(self, index):
        return f"item {index}"


def _field(values: Any) -> Field:
    if isinstance(values, np.ndarray):
        return Field(values.dtype.name, values.shape[1:])
    return Field("uint8", (3, None, None), "image")


def _pair(*masks: Any) -> Memory:
    return Memory(image=[jpeg(number) for number in range(len(masks))], mask=list(masks))


def _first(source: MarkedInput) -> np.ndarray:
    value = source.read(0, 1).records["mask"][0]
    return value[0] if isinstance(value, np.ndarray) else decode_labels(value)[:, :, 0]


@pytest.mark.parametrize(
    "mask", [png(label_map(0)[0]), encode_png(label_map(0)), png(label_map(0)[0] > 0, "L")]
)
def test_a_palette_or_few_gray_values_beside_an_image_are_guessed_and_reported(mask):
    source = MarkedInput(_pair(mask, mask), None, None)
    assert source.labels == ("mask",)
    assert source.manifest.fields["mask"] == Field("uint8", (1, None, None), "image", "labels")
    assert source.manifest.fields["image"].kind == "image"
    assert "input.labels=[mask]" in source.notes[0]
    assert source.read(0, 2).records["mask"] == [mask, mask]


@pytest.mark.parametrize(
    "mask",
    [jpeg(3), encode_png(NOISE[None]), encode_png(pixels(0).transpose(2, 0, 1)), b"no image"],
)
def test_a_picture_is_not_taken_for_a_label_map(mask):
    source = MarkedInput(_pair(encode_png(label_map(0)), mask), None, None)
    assert (source.labels, source.notes) == ((), ())


def test_a_mask_of_0_and_255_gets_a_note_that_255_is_no_class():
    mask = encode_png(np.where(label_map(0) > 0, 255, 0).astype(np.uint8))
    assert "input.values={0: 0, 255: 1}" in MarkedInput(_pair(mask), ["mask"], None).notes[0]
    assert MarkedInput(_pair(mask), ["mask"], {0: 0, 255: 1}).notes == ()


@pytest.mark.parametrize("encode", [png, lambda values: encode_png(values[None])])
def test_values_are_mapped(encode):
    values = np.array([[0, 128], [255, 128]] * 8, np.uint8)
    source = MarkedInput(Memory(mask=[encode(values)]), ["mask"], {0: 0, 128: 1, 255: "ignore"})
    assert _first(source).tolist() == [[0, 1], [IGNORE, 1]] * 8
    assert source.manifest.options == {"values": {"0": 0, "128": 1, "255": IGNORE}}


@pytest.mark.parametrize("shape", [(4, 6), (1, 4, 6), (4, 6, 1)])
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.int16, bool])
def test_arrays_become_bytes_with_one_channel(dtype, shape):
    values = (np.arange(24).reshape(4, 6) % 2).astype(dtype)
    source = MarkedInput(Memory(mask=values.reshape(1, *shape)), ["mask"], None)
    assert source.manifest.fields["mask"] == Field("uint8", (1, 4, 6), kind="labels")
    assert source.read(0, 1).records["mask"].dtype == np.uint8
    assert np.array_equal(_first(source), values)


@pytest.mark.parametrize(
    ("mask", "values", "what"),
    [
        (
            encode_png(label_map(0)),
            {0: 0},
            r"D170.*k0: mask: holds 7, which input\.values does not map; add it",
        ),
        (
            np.array([[[300, 1]]]),
            None,
            r"D170.*k0: mask: holds 300, not within 0\.\.255; map its values with input\.values",
        ),
        (
            encode_png(pixels(0).transpose(2, 0, 1)),
            None,
            r"D171.*k0: mask: is not a label map: colors or alpha",
        ),
        (encode_png(label_map(0, 8, 12)), None, r"D172.*k0: mask has 8 x 12 pixels, image 16 x 12"),
        (b"no image", None, r"D106.*k0: mask"),
    ],
)
def test_a_record_that_is_wrong_is_named(mask, values, what):
    source = Memory(mask=mask) if isinstance(mask, np.ndarray) else _pair(mask)
    with pytest.raises(DataError, match=what):
        MarkedInput(source, ["mask"], values).read(0, 1)


@pytest.mark.parametrize(
    ("labels", "values", "what"),
    [
        (
            ["mas"],
            None,
            r"input\.labels = mas: is not a field of the input; its fields are image, mask, wave",
        ),
        (["wave"], None, r"input\.labels = wave: is float64 \[16\], not an integer for each pixel"),
        ("mask", None, r"input\.labels = mask: must be a list of fields"),
        (["mask"], {0: 300}, r"input\.values = .*300"),
        (["mask"], 3, r"input\.values = 3"),
        ([], {0: 0}, r"input\.values = .*no field is a label map; name"),
    ],
)
def test_what_does_not_fit_the_input_is_said_before_anything_is_packed(labels, values, what):
    source = Memory(image=[jpeg(0)], mask=[encode_png(label_map(0))], wave=np.zeros((1, 16)))
    with pytest.raises(ConfigError, match=f"C179.*{what}"):
        assert MarkedInput(source, labels, values).manifest


@pytest.mark.parametrize("color", [None, "rgb"])
@pytest.mark.parametrize(
    "options",
    [{"encode": "raw", "size": (9, 31)}, {"encode": "png", "resize": 5}, {"encode": "keep"}],
)
def test_preparing_invents_no_class(options, color):
    prepare, source = (
        Preparation(**options, color=color),
        MarkedInput(_pair(png(label_map(0)[0])), None, None),
    )
    field = prepare.fields(source)["mask"]
    value = prepare(source.read(0, 1)).records["mask"][0]
    assert (field.kind, field.channels) == ("labels", 1)
    numbers = value if isinstance(value, np.ndarray) else decode_labels(value)
    assert set(np.unique(numbers).tolist()) == {0, 7}
