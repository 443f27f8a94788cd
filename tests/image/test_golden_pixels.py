"""The one rule for images, checked with every decoder: ours, OpenCV, Pillow and DALI.

Lossless files give exactly the pixels that they were made from. All JPEG decoders that use
libjpeg-turbo give the same pixels. Computed colors (CMYK, gray) agree within 1 level.
"""

import struct
import zlib
from io import BytesIO

import cv2
import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageOps

from framework.image.decode import BadImage, decode, decode_deep, image_size, num_channels
from tests.contract.cases import pixels

COLOR = pixels(1, 24, 32)
GRAY = cv2.cvtColor(COLOR, cv2.COLOR_RGB2GRAY)[:, :, None]
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


EXACT = {
    "png RGB": (saved(PICTURE, "png"), COLOR),
    "png gray": (saved(PICTURE.convert("L"), "png"), rgb(np.asarray(PICTURE.convert("L")))),
    "png 1 bit": (saved(BILEVEL, "png"), rgb(np.asarray(BILEVEL.convert("L")))),
    "png palette": (saved(INDEXED, "png"), INDEXED_COLOR),
    "png palette, one color transparent": (saved(INDEXED, "png", transparency=3), INDEXED_COLOR),
    "png palette with alpha": (
        saved(INDEXED, "png", transparency=bytes(range(0, 160, 10))),
        INDEXED_COLOR,
    ),
    "png gray and alpha": (saved(seen_through("LA"), "png"), rgb(np.asarray(PICTURE.convert("L")))),
    "png RGB and alpha": (saved(seen_through("RGBA"), "png"), COLOR),
    "gif": (saved(INDEXED, "gif"), INDEXED_COLOR),
    "webp": (saved(PICTURE, "webp", lossless=True), COLOR),
    "webp with alpha": (saved(seen_through("RGBA"), "webp", lossless=True, exact=True), COLOR),
    "bmp RGB": (saved(PICTURE, "bmp"), COLOR),
    "bmp gray": (saved(PICTURE.convert("L"), "bmp"), rgb(np.asarray(PICTURE.convert("L")))),
    "bmp palette": (saved(INDEXED, "bmp"), INDEXED_COLOR),
    "bmp 1 bit": (saved(BILEVEL, "bmp"), rgb(np.asarray(BILEVEL.convert("L")))),
    "bmp RGB and alpha": (saved(seen_through("RGBA"), "bmp"), COLOR),
    "tiff RGB": (saved(PICTURE, "tiff"), COLOR),
    "tiff LZW": (saved(PICTURE, "tiff", compression="tiff_lzw"), COLOR),
    "tiff gray": (saved(PICTURE.convert("L"), "tiff"), rgb(np.asarray(PICTURE.convert("L")))),
    "tiff palette": (saved(INDEXED, "tiff"), INDEXED_COLOR),
    "tiff 1 bit": (saved(BILEVEL, "tiff"), rgb(np.asarray(BILEVEL.convert("L")))),
    "tiff gray and alpha": (
        saved(seen_through("LA"), "tiff"),
        rgb(np.asarray(PICTURE.convert("L"))),
    ),
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
    | {"webp": saved(PICTURE, "webp"), "tiff CMYK": saved(PICTURE.convert("CMYK"), "tiff")}
)
ACCEPTED = {name: data for name, (data, _) in EXACT.items()} | LOSSY
REFUSED = {
    "png 16 bits": (saved(DEEP, "png"), "pack.bit_depth=8 pack.encode=png, or 16 and raw"),
    "tiff 16 bits": (saved(DEEP, "tiff"), "pack.bit_depth=8 pack.encode=png, or 16 and raw"),
    "tiff floating point": (saved(PICTURE.convert("F"), "tiff"), "convert it to 8 or 16 bits"),
    "gif animation": (
        saved(INDEXED, "gif", save_all=True, append_images=[INDEXED.rotate(90)]),
        "an animation, or several pages",
    ),
    "webp animation": (
        saved(PICTURE, "webp", save_all=True, append_images=[PICTURE.rotate(90)]),
        "an animation, or several pages",
    ),
    "png animation": (
        saved(PICTURE, "png", save_all=True, append_images=[PICTURE.rotate(90)]),
        "an animation, or several pages",
    ),
    "tiff pages": (
        saved(PICTURE, "tiff", save_all=True, append_images=[PICTURE.rotate(90)]),
        "an animation, or several pages",
    ),
}
# DALI 2.4 does not read GIF, TIFF of 1 bit, or an EXIF note in a WebP behind a chunk of odd length.
# It takes the alpha of a gray TIFF for green. It takes CMYK for inverted only if a file says that
# it is Adobe's.
NOT_FOR_DALI = {
    "gif",
    "tiff 1 bit",
    "tiff gray and alpha",
    "webp EXIF 6, odd length",
    "CMYK that does not say it is Adobe's",
}


def by_pillow(data: bytes) -> np.ndarray:
    """Return uint8 [H, W, 3] from Pillow by the rule of ``decode``: upright, without alpha."""
    image = ImageOps.exif_transpose(Image.open(BytesIO(data)))
    see_through = image.mode in ("LA", "RGBA") or "transparency" in image.info
    return (
        np.asarray(image.convert("RGBA"))[:, :, :3]
        if see_through
        else np.asarray(image.convert("RGB"))
    )


def difference(pixels: np.ndarray, expected: np.ndarray) -> int:
    assert pixels.shape == expected.shape
    return int(np.abs(pixels.astype(int) - expected).max())


@pytest.mark.parametrize("name", EXACT)
def test_a_lossless_file_gives_the_pixels_it_was_made_from(name):
    data, expected = EXACT[name]
    assert np.array_equal(decode(data, 3), expected)
    assert image_size(data) == expected.shape[:2]


@pytest.mark.parametrize("name", ACCEPTED)
def test_pillow_gives_the_same(name):
    assert difference(decode(ACCEPTED[name], 3), by_pillow(ACCEPTED[name])) == 0


@pytest.mark.parametrize("name", JPEG)
def test_every_libjpeg_turbo_gives_the_same(name):
    data = JPEG[name]
    assert np.array_equal(
        cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB), decode(data, 3)
    )
    assert difference(decode(data, 3), by_pillow(data)) == 0


@pytest.mark.parametrize("name", INKS)
def test_opencv_makes_the_same_colors_of_inks(name):
    assert (
        difference(
            cv2.imdecode(np.frombuffer(INKS[name], np.uint8), cv2.IMREAD_COLOR_RGB),
            decode(INKS[name], 3),
        )
        <= 1
    )


@pytest.mark.parametrize("name", ACCEPTED)
def test_gray_is_the_same_share_of_each_color_everywhere(name):
    data = ACCEPTED[name]
    share = np.round(decode(data, 3) @ np.array([0.299, 0.587, 0.114]))
    levels = np.abs(decode(data, 1)[:, :, 0] - share)
    assert levels.mean() < 0.5
    assert levels.max() <= (10 if name in JPEG else 1)  # a JPEG's Y was not clipped, its RGB was
    assert num_channels(data) == 3 or np.array_equal(
        decode(data, 1)[:, :, 0], decode(data, 3)[:, :, 0]
    )


@pytest.mark.parametrize("name", REFUSED)
def test_an_ambiguous_image_is_refused_with_advice(name):
    data, words = REFUSED[name]
    for channels in (1, 3):
        with pytest.raises(BadImage, match=words):
            decode(data, channels)


@pytest.mark.parametrize("name", ["png 16 bits", "tiff 16 bits"])
def test_sixteen_bits_can_be_asked_for(name):
    assert np.array_equal(decode_deep(REFUSED[name][0], 1)[:, :, 0], np.asarray(DEEP))


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_truncated_file_is_refused(name, capfd):
    data = ACCEPTED[name]
    for percent in range(0, 100, 5):
        for channels in (1, 3):
            with pytest.raises(BadImage):
                decode(data[: len(data) * percent // 100], channels)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_jpeg_without_loss_is_turned_upright(orientation):
    flat = np.zeros((16, 32, 3), np.uint8)
    flat[:8, :8] = 255  # top left as stored
    note = Image.Exif()
    note[0x0112] = orientation
    turned = decode(saved(Image.fromarray(flat), "jpeg", quality=100, subsampling=0, exif=note), 3)
    corners = {
        1: (0, 0),
        2: (0, -1),
        3: (-1, -1),
        4: (-1, 0),
        5: (0, 0),
        6: (0, -1),
        7: (-1, -1),
        8: (-1, 0),
    }
    assert turned[corners[orientation]].min() > 250
    assert turned.sum() / 255 == pytest.approx(3 * 64, rel=0.02)


def test_a_bomb_is_refused_from_its_header():
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0))
    bomb = (
        b"\x89PNG\r\n\x1a\n"
        + header
        + chunk(b"IDAT", zlib.compress(bytes(100)))
        + chunk(b"IEND", b"")
    )
    with pytest.raises(BadImage, match="20000 x 20000 pixels are more than 64000000"):
        decode(bomb, 3)


@pytest.mark.parametrize("channels", [1, 3])
def test_dali_gives_the_same(channels):
    dali = pytest.importorskip("nvidia.dali", reason="DALI is not installed: make dali")
    files = {name: data for name, data in ACCEPTED.items() if name not in NOT_FOR_DALI}
    encoded = [np.frombuffer(data, np.uint8) for data in files.values()]
    pipeline = dali.Pipeline(
        batch_size=len(files), num_threads=1, device_id=None, prefetch_queue_depth=1
    )
    with pipeline:
        source = dali.fn.external_source(source=lambda: encoded, batch=True)
        kind = dali.types.RGB if channels == 3 else dali.types.GRAY
        pipeline.set_outputs(
            dali.fn.decoders.image(source, device="cpu", output_type=kind, adjust_orientation=True)
        )
    pipeline.build()
    images = pipeline.run()[0]
    levels = {
        name: difference(images.at(n), decode(data, channels))
        for n, (name, data) in enumerate(files.items())
    }
    assert {name: level for name, level in levels.items() if level > 1} == {}
