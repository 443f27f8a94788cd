import pytest
import torch

from framework.augment import normalize

IMAGE = torch.randint(
    0, 256, (4, 3, 5, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]


def normalized(image, mean, std, dtype="float32"):
    return normalize.Normalize("image", mean, std, dtype)({"image": image}, None)["image"]


@pytest.mark.parametrize(("mean", "std"), [(MEAN, STD), ([0.5], [0.5])], ids=["three", "one"])
def test_pixels_are_those_of_double_precision_both_ways(mean, std, monkeypatch):
    numbers = [torch.tensor(values).double().view(-1, 1, 1) for values in (mean, std)]
    expected = (IMAGE.double() / 255 - numbers[0]) / numbers[1]
    compiled = normalized(IMAGE, mean, std)
    monkeypatch.setattr(normalize, "find", lambda name: None)
    for result in (compiled, normalized(IMAGE, mean, std)):
        assert result.dtype == torch.float32
        assert torch.allclose(result.double(), expected, atol=1e-5)


def test_floats_are_taken_to_be_in_the_unit_range_and_stay_as_they_were():
    image = IMAGE.float() / 255
    assert torch.allclose(normalized(image, MEAN, STD), normalized(IMAGE, MEAN, STD), atol=1e-5)
    assert torch.equal(image, IMAGE.float() / 255)


def test_16_bit_pixels_are_normalized_from_0_to_1():
    deep = torch.tensor([0, 32896, 65535], dtype=torch.int32).to(torch.uint16).view(3, 1, 1, 1)
    middle = 32896 / 65535
    assert normalize.unit(deep).flatten().tolist() == pytest.approx([0, middle, 1], rel=1e-6)
    expected = pytest.approx([-2, (middle - 0.5) * 4, 2], abs=1e-6)
    assert normalized(deep, [0.5], [0.25]).flatten().tolist() == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (([0.1, 0.2], [0.1]), "do not fit"),
        (([0.1], [0.0]), "do not fit"),
        (([0.4], [0.3], "int8"), "dtype = int8 must be float32, bfloat16, float16"),
    ],
    ids=["another number", "no deviation", "dtype"],
)
def test_statistics_and_dtypes_that_do_not_fit_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        normalize.Normalize("image", *options)
