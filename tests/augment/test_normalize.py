import pytest
import torch

from framework.augment import normalize
from framework.augment.normalize import Normalize, unit
from framework.augment.pixels import PixelChange
from framework.system.native import find

IMAGE = torch.randint(
    0, 256, (4, 3, 5, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]


@pytest.fixture(autouse=True, params=["compiled", "torch"])
def way(request, monkeypatch):
    if request.param == "compiled" and find("paceline_crop_flip") is None:
        pytest.skip(
            "framework/system/native is not compiled here: "
            "no C compiler when the package was installed"
        )
    if request.param == "torch":
        monkeypatch.setattr(normalize, "find", lambda name: None)


def _slow(image, mean, std):
    """Normalize one pixel at a time, in double precision."""
    expected = torch.zeros(image.shape, dtype=torch.float64)
    for place in torch.cartesian_prod(*[torch.arange(size) for size in image.shape]).tolist():
        record, channel, row, column = place
        value = int(image[record, channel, row, column]) / 255
        expected[record, channel, row, column] = (value - mean[channel % len(mean)]) / std[
            channel % len(std)
        ]
    return expected


@pytest.mark.parametrize(("mean", "std"), [(MEAN, STD), ([0.5], [0.5]), ([0.0], [1.0])])
def test_it_equals_the_slow_reference(mean, std):
    result = Normalize("image", mean, std)({"image": IMAGE}, None)["image"]
    assert result.dtype == torch.float32
    assert torch.allclose(result.double(), _slow(IMAGE, mean, std), atol=1e-5)


def test_black_and_white_become_the_ends_of_the_range():
    image = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    assert Normalize("image", [0.5], [0.5])({"image": image}, None)["image"].flatten().tolist() == [
        -1.0,
        1.0,
    ]


def test_only_the_named_field_is_changed():
    batch = {"index": torch.arange(4), "photo": IMAGE, "mask": IMAGE}
    result = Normalize("photo", MEAN, STD)(batch, None)
    assert result["mask"] is batch["mask"]
    assert result["index"] is batch["index"]
    assert result["photo"].dtype == torch.float32


def test_floats_are_taken_to_be_in_the_unit_range_and_stay_as_they_were():
    image = IMAGE.float() / 255
    result = Normalize("image", MEAN, STD)({"image": image}, None)["image"]
    assert torch.allclose(
        result, Normalize("image", MEAN, STD)({"image": IMAGE}, None)["image"], atol=1e-5
    )
    assert torch.equal(image, IMAGE.float() / 255)


def test_several_fields_are_normalized():
    batch = {"blurry": IMAGE, "sharp": IMAGE.clone()}
    result = Normalize(["blurry", "sharp"], MEAN, STD)(batch, None)
    assert torch.equal(result["blurry"], result["sharp"])
    assert result["sharp"].dtype == torch.float32


@pytest.mark.parametrize(("mean", "std"), [([0.1, 0.2], [0.1]), ([0.1], [0.0]), ([0.1], [-1.0])])
def test_means_and_deviations_that_do_not_fit_are_refused(mean, std):
    with pytest.raises(ValueError, match="do not fit"):
        Normalize("image", mean, std)


def test_only_images_on_the_cpu_look_for_compiled_code(monkeypatch):
    def find_nothing(name):
        raise AssertionError(name)

    monkeypatch.setattr(normalize, "find", find_nothing)
    image = torch.empty(2, 3, 4, 4, dtype=torch.uint8, device="meta")
    assert normalize.changed_at_once(image, PixelChange()) is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_pixels_in_sixteen_bits_are_rounded_from_float32(dtype):
    batch = {"image": torch.arange(2 * 3 * 5 * 5, dtype=torch.uint8).view(2, 3, 5, 5)}
    whole = Normalize("image", [0.4], [0.3])(batch, None)["image"]
    half = Normalize("image", [0.4], [0.3], dtype)(batch, None)["image"]
    assert half.dtype == getattr(torch, dtype)
    assert half.equal(whole.to(half.dtype))


def test_another_dtype_is_refused():
    with pytest.raises(ValueError, match="dtype = int8 must be float32, bfloat16, float16"):
        Normalize("image", [0.4], [0.3], "int8")


DEEP = torch.tensor([0, 32896, 65535], dtype=torch.int32).to(torch.uint16).view(3, 1, 1, 1)


def test_16_bit_pixels_are_normalized_from_0_to_1():
    assert unit(DEEP).flatten().tolist() == pytest.approx([0, 32896 / 65535, 1], rel=1e-6)
    result = Normalize("image", [0.5], [0.25])({"image": DEEP}, None)["image"]
    assert result.flatten().tolist() == pytest.approx([-2, (32896 / 65535 - 0.5) * 4, 2], abs=1e-6)


def test_16_bit_pixels_and_bytes_of_one_picture_become_the_same_numbers():
    deep = (IMAGE.int() * 257).to(torch.uint16)
    result = Normalize("image", MEAN, STD)({"image": deep}, None)["image"]
    expected = Normalize("image", MEAN, STD)({"image": IMAGE}, None)["image"]
    assert torch.allclose(result, expected, atol=1e-6)
    assert torch.allclose(unit(deep), unit(IMAGE))
