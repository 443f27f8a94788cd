"""The one rule for images: exact pixels, or computed colors within 1, from every decoder."""

import struct
from io import BytesIO

import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageOps

from framework.media.decode import decode
from framework.media.header import BadImage, read_header
from tests.contract.cases import pixels

COLOR = pixels(1, 24, 32)
PICTURE = Image.fromarray(COLOR)
ALPHA = Image.fromarray(pixels(2, 24, 32, 1)[:, :, 0])
INDEXED = PICTURE.convert("P", palette=Image.Palette.ADAPTIVE, colors=16)
INDEXED_COLOR = np.asarray(INDEXED.convert("RGB"))
BILEVEL = PICTURE.convert("1")
DEEP = Image.fromarray(np.asarray(PICTURE.convert("L"), np.uint16) * 257)


def saved(image: Image.Image, kind: str, **options) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noted(kind: str, orientation: int, **options) -> bytes:
    note = Image.Exif()
    note[0x0112] = orientation
    return saved(PICTURE, kind, exif=note, **options)


def webp_noted(orientation: int, length: int) -> bytes:
    """Return a WebP whose pixels lie in a chunk of even (0) or odd (1) length."""
    files = (noted("webp", orientation, lossless=True, quality=quality) for quality in range(101))
    return next(data for data in files if data[34] % 2 == length)


def seen_through(mode: str) -> Image.Image:
    image = PICTURE.convert(mode)
    image.putalpha(ALPHA)
    return image


def upright(orientation: int) -> np.ndarray:
    """Return COLOR as it is to be seen if it is stored with this EXIF orientation."""
    note = Image.Exif()
    note[0x0112] = orientation
    image = PICTURE.copy()
    image.info["exif"] = note.tobytes()
    return np.asarray(ImageOps.exif_transpose(image))


def rgb(gray: np.ndarray) -> np.ndarray:
    return np.repeat(gray.reshape(24, 32, 1), 3, axis=2)


def ycck() -> bytes:
    inks = simplejpeg.decode_jpeg(
        saved(PICTURE.convert("CMYK"), "jpeg", quality=95), colorspace="CMYK"
    )
    return simplejpeg.encode_jpeg(np.ascontiguousarray(inks), 95, "CMYK", "420")


def without_adobe(data: bytes) -> bytes:
    """Return a JPEG without the note that says that its CMYK is Adobe's."""
    at = data.index(b"\xff\xee")
    return data[:at] + data[at + 2 + struct.unpack_from(">H", data, at + 2)[0] :]


GRAY = rgb(np.asarray(PICTURE.convert("L")))
BLACK_AND_WHITE = rgb(np.asarray(BILEVEL.convert("L")))
EXACT = {
    "png RGB": (saved(PICTURE, "png"), COLOR),
    "png gray": (saved(PICTURE.convert("L"), "png"), GRAY),
    "png 1 bit": (saved(BILEVEL, "png"), BLACK_AND_WHITE),
    "png palette": (saved(INDEXED, "png"), INDEXED_COLOR),
    "png palette, one color transparent": (saved(INDEXED, "png", transparency=3), INDEXED_COLOR),
    "png palette with alpha": (
        saved(INDEXED, "png", transparency=bytes(range(0, 160, 10))),
        INDEXED_COLOR,
    ),
    "png gray and alpha": (saved(seen_through("LA"), "png"), GRAY),
    "png RGB and alpha": (saved(seen_through("RGBA"), "png"), COLOR),
    "gif": (saved(INDEXED, "gif"), INDEXED_COLOR),
    "webp": (saved(PICTURE, "webp", lossless=True), COLOR),
    "webp with alpha": (saved(seen_through("RGBA"), "webp", lossless=True, exact=True), COLOR),
    "bmp RGB": (saved(PICTURE, "bmp"), COLOR),
    "bmp gray": (saved(PICTURE.convert("L"), "bmp"), GRAY),
    "bmp palette": (saved(INDEXED, "bmp"), INDEXED_COLOR),
    "bmp 1 bit": (saved(BILEVEL, "bmp"), BLACK_AND_WHITE),
    "bmp RGB and alpha": (saved(seen_through("RGBA"), "bmp"), COLOR),
    "tiff RGB": (saved(PICTURE, "tiff"), COLOR),
    "tiff LZW": (saved(PICTURE, "tiff", compression="tiff_lzw"), COLOR),
    "tiff gray": (saved(PICTURE.convert("L"), "tiff"), GRAY),
    "tiff palette": (saved(INDEXED, "tiff"), INDEXED_COLOR),
    "tiff 1 bit": (saved(BILEVEL, "tiff"), BLACK_AND_WHITE),
    "tiff gray and alpha": (saved(seen_through("LA"), "tiff"), GRAY),
    "tiff RGB and alpha": (saved(seen_through("RGBA"), "tiff"), COLOR),
    **{f"png EXIF {n}": (noted("png", n), upright(n)) for n in range(1, 9)},
    **{f"webp EXIF {n}": (webp_noted(n, length=0), upright(n)) for n in range(1, 9)},
    "webp EXIF 6, odd length": (webp_noted(6, length=1), upright(6)),
    **{f"tiff EXIF {n}": (noted("tiff", n), upright(n)) for n in range(1, 9)},
}
JPEG = {
    "4:2:0": saved(PICTURE, "jpeg", quality=90, subsampling=2),
    "4:2:2": saved(PICTURE, "jpeg", quality=90, subsampling=1),
    "4:4:4": saved(PICTURE, "jpeg", quality=90, subsampling=0),
    "gray": saved(PICTURE.convert("L"), "jpeg"),
    "progressive": saved(PICTURE, "jpeg", progressive=True),
    "RGB": saved(PICTURE, "jpeg", keep_rgb=True),
    **{f"EXIF {n}": noted("jpeg", n) for n in range(1, 9)},
}
INKS = {
    "CMYK": saved(PICTURE.convert("CMYK"), "jpeg", quality=95),
    "CMYK that does not say it is Adobe's": without_adobe(
        saved(PICTURE.convert("CMYK"), "jpeg", quality=95)
    ),
    "YCCK": ycck(),
}
LOSSY = (
    JPEG
    | INKS
    | {"webp, lossy": saved(PICTURE, "webp"), "tiff CMYK": saved(PICTURE.convert("CMYK"), "tiff")}
)
ACCEPTED = {name: data for name, (data, _) in EXACT.items()} | LOSSY
PAGES = "an animation, or several pages"


def paged(image: Image.Image, kind: str) -> bytes:
    return saved(image, kind, save_all=True, append_images=[image.rotate(90)])


REFUSED = {
    "png 16 bits": (saved(DEEP, "png"), "pack.bit_depth=8 pack.encode=png, or 16 and raw"),
    "tiff 16 bits": (saved(DEEP, "tiff"), "pack.bit_depth=8 pack.encode=png, or 16 and raw"),
    "tiff floating point": (saved(PICTURE.convert("F"), "tiff"), "convert it to 8 or 16 bits"),
    "gif animation": (paged(INDEXED, "gif"), PAGES),
    "webp animation": (paged(PICTURE, "webp"), PAGES),
    "png animation": (paged(PICTURE, "png"), PAGES),
    "tiff pages": (paged(PICTURE, "tiff"), PAGES),
}


# DALI 2.4 does not read GIF, TIFF of 1 bit, or an EXIF note in a WebP behind a chunk of odd length.
# It takes the alpha of a gray TIFF for green. It takes CMYK for inverted only if a file says that
# it is Adobe's.
NOT_FOR_DALI = {
    *("gif", "tiff 1 bit", "tiff gray and alpha", "webp EXIF 6, odd length"),
    "CMYK that does not say it is Adobe's",
}


def by_pillow(data: bytes) -> np.ndarray:
    """Return uint8 [H, W, 3] from Pillow by the rule of ``decode``: upright, without alpha."""
    image = ImageOps.exif_transpose(Image.open(BytesIO(data)))
    see_through = image.mode in ("LA", "RGBA") or "transparency" in image.info
    return np.asarray(image.convert("RGBA" if see_through else "RGB"))[:, :, :3]


def by_dali(files: dict[str, bytes], channels: int) -> dict[str, np.ndarray]:
    """Return the images of all files, decoded by DALI in one batch."""
    dali = pytest.importorskip("nvidia.dali", reason="DALI is not installed: make dali")
    encoded = [np.frombuffer(data, np.uint8) for data in files.values()]
    options = {"num_threads": 1, "device_id": None, "prefetch_queue_depth": 1}
    pipeline = dali.Pipeline(batch_size=len(files), **options)
    with pipeline:
        source = dali.fn.external_source(source=lambda: encoded, batch=True)
        form = {"output_type": dali.types.RGB if channels == 3 else dali.types.GRAY}
        images = dali.fn.decoders.image(source, device="cpu", adjust_orientation=True, **form)
        pipeline.set_outputs(images)
    pipeline.build()
    images = pipeline.run()[0]
    return {name: images.at(number) for number, name in enumerate(files)}


def differing(images: dict[str, np.ndarray], channels: int = 3, most: int = 0) -> dict[str, int]:
    """Return by how many levels images differ from ours, where it is more than ``most``."""
    levels = {}
    for name, image in images.items():
        ours = decode(ACCEPTED[name], channels)
        assert ours.shape == image.shape, name
        levels[name] = int(np.abs(ours.astype(int) - image).max())
    return {name: level for name, level in levels.items() if level > most}


def test_lossless_files_give_the_pixels_that_they_were_made_from():
    assert differing({name: expected for name, (_, expected) in EXACT.items()}) == {}
    for data, expected in EXACT.values():
        assert read_header(data).size == expected.shape[:2]


def test_pillow_gives_the_same_pixels():
    assert differing({name: by_pillow(data) for name, data in ACCEPTED.items()}) == {}


@pytest.mark.parametrize("channels", [1, 3])
def test_dali_gives_nearly_the_same_pixels(channels):
    files = {name: data for name, data in ACCEPTED.items() if name not in NOT_FOR_DALI}
    assert differing(by_dali(files, channels), channels, most=1) == {}


def test_gray_is_the_same_share_of_each_color_everywhere():
    for name, data in ACCEPTED.items():
        gray = decode(data, 1)[:, :, 0]
        levels = np.abs(gray - np.round(decode(data, 3) @ np.array([0.299, 0.587, 0.114])))
        assert levels.mean() < 0.5, name
        # a JPEG's Y was not clipped, its RGB was
        assert levels.max() <= (10 if name in JPEG else 1), name
        assert read_header(data).colors == 3 or np.array_equal(gray, decode(data, 3)[:, :, 0]), name


@pytest.mark.parametrize("name", REFUSED)
def test_an_ambiguous_image_is_refused_with_advice(name):
    data, words = REFUSED[name]
    for channels in (1, 3):
        with pytest.raises(BadImage, match=words):
            decode(data, channels)


def test_a_file_truncated_anywhere_is_refused_and_nothing_is_printed(capfd):
    large = {kind: saved(PICTURE.resize((300, 200)), kind) for kind in ("png", "jpeg", "webp")}
    for data in [*ACCEPTED.values(), *large.values()]:
        for percent in range(0, 100, 5):
            for channels in (1, 3):
                with pytest.raises(BadImage):
                    decode(data[: len(data) * percent // 100], channels)
    assert capfd.readouterr() == ("", "")
