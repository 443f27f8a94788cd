"""Decodes image files to pixels by one set of rules, whatever the format.

- Pixels are uint8 [H, W, C]. C is 1 (gray) or 3 (RGB), as the store's field says.
- All eight EXIF orientations are applied. An image without a valid one is upright.
- Alpha is dropped without blending. Palettes become colors. Color profiles and gamma are ignored.
- CMYK and YCCK JPEGs are inverted, as Adobe writes them: red is cyan times black over 255.
- Gray is 0.299 red + 0.587 green + 0.114 blue, rounded. A gray read of a YCbCr JPEG takes Y as it
  is. It differs from the gray of the RGB by less than 1 level on average, more if RGB was clipped.
- Animations, several pages, more than 8 bits and truncated files are refused.

Label maps are PNGs whose samples, gray values or indices into a palette, are class numbers. Those
of 1, 2 or 4 bits are not stretched to 255. ``tests/media/test_golden_pixels.py`` holds decoders to
these rules.
"""

import os
import struct
import zlib
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

LARGEST = 1 << 28  # pixels that OpenCV may decode, if it reads a header differently from us
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(LARGEST))  # cv2 reads it when imported

import cv2  # noqa: E402
import numpy as np  # noqa: E402
import simplejpeg  # noqa: E402
import torch  # noqa: E402

from framework.contracts.batch import Batch  # noqa: E402
from framework.contracts.records import IGNORE  # noqa: E402
from framework.errors import DataError  # noqa: E402
from framework.media import header as headers  # noqa: E402
from framework.media.header import MAX_PIXELS, BadImage, ImageHeader, read_header  # noqa: E402

cv2.setNumThreads(0)  # our workers run in parallel; OpenCV's own threads would compete with them
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # our errors name the problem
SAMPLE = 32  # images that are looked at before all are taken to be gray
LOSSLESS_SIDE = 128  # pixels of the longer side up to which a page has a PNG of a picture
Window = tuple[int, int, int, int, int]  # top, left, height, width, flip
DENOMINATORS = (8, 4, 2)  # libjpeg-turbo's fast scales
GRAY, PALETTE = 0, 3  # PNG's color types
# By bits per sample: the factor by which the decoder stretches gray values.
STRETCHED = {1: 255, 2: 85, 4: 17, 8: 1, 16: 1}


def decode(
    data: Any, channels: int, max_pixels: int = MAX_PIXELS, least: tuple[int, int] | None = None
) -> np.ndarray:
    """Return the image in ``data`` as uint8 [H, W, channels], upright. Raises BadImage.

    A JPEG comes at the smallest of 1, 1/2, 1/4, 1/8 that has the size ``least``, if that is given.
    """
    header = accepted_header(data, max_pixels)
    factor = 1
    if header.format == "jpeg" and least is not None:
        height, width = header.size
        fits = (d for d in DENOMINATORS if -(-height // d) >= least[0])
        factor = next((d for d in fits if -(-width // d) >= least[1]), 1)
    return orient(_stored(data, header, channels, factor), header.orientation)


def decode_deep(data: Any, channels: int, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Decode to uint16 [H, W, channels]: 16 bits as stored, fewer times 257. Raises BadImage."""
    header = accepted_header(data, max_pixels, deepest=16)
    if header.bit_depth <= 8:
        return orient(_stored(data, header, channels, 1), header.orientation) * np.uint16(257)
    image = _opencv(data, header, cv2.IMREAD_ANYDEPTH | cv2.IMREAD_COLOR, np.uint16)
    # Not IMREAD_COLOR_RGB: OpenCV 5.0.0 returns uninitialized memory for a 16-bit TIFF.
    image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
    if header.format == "tiff" and headers.white_is_zero(data):  # OpenCV inverts only 8 bits
        image = np.uint16(65535) - image
    return orient(convert(image, channels, header.colors), header.orientation)


def window_pixels(
    data: Any, header: ImageHeader, channels: int, window: Window, size: tuple[int, int] | None
) -> np.ndarray:
    """Return a window of the upright image as uint8 [h, w, channels], not flipped.

    A JPEG is decoded at the smallest of 1, 1/2, 1/4, 1/8 that covers ``size``. The window is
    rounded to pixels of that scale, by less than half a pixel of the result. Raises BadImage.
    """
    top, left, height, width, _ = window
    d = 1
    if header.format == "jpeg" and header.orientation == 1 and size is not None:
        d = next((d for d in DENOMINATORS if height >= d * size[0] and width >= d * size[1]), 1)
    image = orient(_stored(data, header, channels, d), header.orientation)
    row, column = (top + d // 2) // d, (left + d // 2) // d
    rows = min(len(image) - row, (height + d // 2) // d)
    columns = min(image.shape[1] - column, (width + d // 2) // d)
    return image[row : row + rows, column : column + columns]


def accepted_header(data: Any, max_pixels: int = MAX_PIXELS, deepest: int = 8) -> ImageHeader:
    """Return the header of an image with at most ``deepest`` bits per channel. Raises BadImage."""
    header = read_header(data)
    if header.height * header.width > max_pixels:
        size = f"{header.height} x {header.width} pixels"
        raise BadImage(f"{size} are more than {max_pixels}, which pack.max_pixels may raise")
    if header.frames > 1:
        raise BadImage("an animation, or several pages: extract the frames")
    if header.bit_depth > deepest:
        hint = "convert it to 8 or 16 bits"
        if header.bit_depth == 16 and deepest == 8:
            hint = "pack it with pack.bit_depth=8 pack.encode=png, or 16 and raw"
        raise BadImage(f"more than {deepest} bits a channel: {hint}")
    return header


def shared_channels(count: int, read: Callable[[int], Any]) -> int:
    """Return 1 if ``count`` images are gray, else 3, as the first one and a sample of them tell.

    ``refuse_colors`` is for those outside the sample. Raises BadImage if the first one is bad.
    """
    channels = read_header(read(0)).colors
    for index in np.linspace(0, count - 1, min(count, SAMPLE), dtype=np.int64)[1:].tolist():
        if channels > 1:
            break
        with suppress(BadImage, ValueError, TypeError, DataError):
            channels = read_header(read(index)).colors
    return channels


def refuse_colors(data: Any, where: str, max_pixels: int = MAX_PIXELS) -> None:
    """Raise DataError D122 if the channels of an image, which a sample made gray, differ."""
    header = read_header(data)
    if header.colors == 1:
        return
    is_deep = header.bit_depth > 8
    image = decode_deep(data, 3, max_pixels) >> 8 if is_deep else decode(data, 3, max_pixels)
    if int((image.max(axis=2) - image.min(axis=2)).max()) > 8:
        fix = "pack with pack.color=rgb, which keeps colors, or pack.color=gray, which drops them"
        raise DataError(122, where, "an image in color, but a sample of the others is gray", fix)


def encode_png(image: np.ndarray) -> bytes:
    """Return uint8 or uint16 [C, H, W] as a PNG file. C is 1 or 3."""
    return cv2.imencode(".png", image.transpose(1, 2, 0)[:, :, ::-1])[1].tobytes()  # OpenCV's order


def encode_jpeg(image: np.ndarray, quality: int) -> bytes:
    """Return uint8 [C, H, W], C 1 or 3, as a JPEG with 4:2:0 subsampling, quality 1 to 100."""
    pixels = np.ascontiguousarray(image.transpose(1, 2, 0))
    form, colors = ("GRAY", "Gray") if pixels.shape[2] == 1 else ("RGB", "420")
    return simplejpeg.encode_jpeg(pixels, quality=quality, colorspace=form, colorsubsampling=colors)


def data_uri(image: np.ndarray) -> str:
    """Return uint8 [C, H, W] as an address inside a page. Small pictures keep every pixel."""
    image = np.ascontiguousarray(image)
    if max(image.shape[1:]) <= LOSSLESS_SIDE:
        return f"data:image/png;base64,{b64encode(encode_png(image)).decode()}"
    return f"data:image/jpeg;base64,{b64encode(encode_jpeg(image, 85)).decode()}"


def orient(image: np.ndarray, orientation: int) -> np.ndarray:
    """Turn [H, W, C] upright by its EXIF orientation."""
    if orientation >= 5:
        image = _as_three(cv2.transpose(image))
    code = {2: 1, 3: -1, 4: 0, 6: 1, 7: -1, 8: 0}.get(orientation)
    return image if code is None else _as_three(cv2.flip(image, code))


def _stored(data: Any, header: ImageHeader, channels: int, factor: int) -> np.ndarray:
    """Decode to uint8 [H, W, channels], not turned upright, at 1, 1/2, 1/4 or 1/8 of the size."""
    size = -(-header.width // factor), -(-header.height // factor)
    form = "RGB" if channels == 3 else "GRAY"
    if header.channels == 4:
        form = "CMYK"
    try:
        if header.format == "jpeg":
            width, height = size if factor > 1 else (0, 0)
            image = simplejpeg.decode_jpeg(
                data, colorspace=form, min_height=height, min_width=width, strict=True
            )
            if form != "CMYK":
                return image
            *inks, black = cv2.split(image)
            colors = [cv2.multiply(ink, black, scale=1 / 255) for ink in inks]
            return convert(cv2.merge(colors), channels)
    except ValueError as error:
        # TurboJPEG does not know every subsampling, but OpenCV's libjpeg does.
        if "subsampling level" not in str(error):
            raise BadImage(str(error)) from error
    image = convert(_opencv(data, header, cv2.IMREAD_COLOR_RGB, np.uint8), channels, header.colors)
    if factor == 1:
        return image
    return _as_three(cv2.resize(image, size, interpolation=cv2.INTER_AREA))


def convert(image: np.ndarray, channels: int, colors: int = 3) -> np.ndarray:
    """Convert [H, W, 1 or 3] to [H, W, channels]. If ``colors`` is 1, three channels are equal."""
    if image.shape[2] == channels:
        return image
    if channels == 3:
        return cv2.cvtColor(image, cv2.COLOR_GRAY2RGB)
    if colors == 1:
        return _as_three(cv2.extractChannel(image, 0))
    return _as_three(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY))


def _check_png(data: Any) -> None:
    """Check a PNG's checksums before libpng does, which would print errors. Raises BadImage."""
    view = memoryview(data)
    for _, at, length in headers.png_chunks(view):
        expected = int.from_bytes(view[at + length : at + length + 4], "big")
        if zlib.crc32(view[at - 4 : at + length]) != expected:
            raise BadImage("damaged: a checksum does not match")


def _opencv(data: Any, header: ImageHeader, flags: int, dtype: Any) -> np.ndarray:
    """Decode to [H, W, 3] as stored. OpenCV must not apply the orientation."""
    if header.format == "png":
        _check_png(data)
    source = headers.plain_tiff(data) if header.format == "tiff" else data
    try:
        image = cv2.imdecode(np.frombuffer(source, np.uint8), flags | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error:
        image = None
    if image is None or image.shape != (header.height, header.width, 3) or image.dtype != dtype:
        kind = header.format.upper()
        raise BadImage(f"a {kind} that is truncated, damaged, or of a kind that is not read")
    return image


def _as_three(image: np.ndarray) -> np.ndarray:
    return image.reshape(*image.shape[:2], -1)  # OpenCV drops a last dimension of 1


class BadLabels(BadImage):
    """The image cannot be a label map."""


def labels_header(data: Any, max_pixels: int = MAX_PIXELS, deepest: int = 8) -> ImageHeader:
    """Return the header of a PNG with one number of 8, or ``deepest``, bits per pixel. BadImage."""
    header = accepted_header(data, max_pixels, deepest=16)
    if header.format != "png":
        raise BadLabels(f"a {header.format.upper()}: a label map must be a PNG")
    if data[25] not in (GRAY, PALETTE):
        raise BadLabels("colors or alpha: a label map must be a gray PNG, or one with a palette")
    if header.bit_depth > deepest:
        raise BadLabels("numbers of 16 bits: map them to 0..255 with input.values")
    return header


def decode_labels(data: Any, max_pixels: int = MAX_PIXELS, deepest: int = 8) -> np.ndarray:
    """Return class numbers [H, W, 1], upright: uint8, or uint16. See ``labels_header``."""
    header = labels_header(data, max_pixels, deepest)
    _check_png(data)
    # A gray PNG of the same samples, without palette, transparency, gamma and orientation.
    parts = [bytes(data[:8])]
    for kind, at, length in headers.png_chunks(data):
        content = bytes(data[at : at + length])
        if kind == b"IHDR":
            content = content[:9] + bytes([GRAY]) + content[10:]
        if kind in (b"IHDR", b"IDAT", b"IEND"):
            body = kind + content
            parts += [struct.pack(">I", length), body, struct.pack(">I", zlib.crc32(body))]
    try:
        pixels = cv2.imdecode(np.frombuffer(b"".join(parts), np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        pixels = None
    if pixels is None or pixels.shape != (header.height, header.width):
        raise BadImage("a PNG that is truncated, damaged, or of a kind that is not read")
    factor = STRETCHED[header.bit_depth]
    if factor > 1:
        pixels //= factor
    return orient(pixels[:, :, None], header.orientation)


@cache
def label_colors() -> np.ndarray:
    """Return an RGB color for each class, uint8 [256, 3]. 0 is black, ``IGNORE`` is light gray.

    Source: Pascal VOC's color map, which spreads the bits of a number over the channels.
    """
    numbers = np.arange(256, dtype=np.uint8)
    colors = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        colors[:, bit % 3] |= (numbers >> bit & 1) << (7 - bit // 3)
    colors[IGNORE] = 224
    return colors


def colored(batch: Batch, names: Sequence[str]) -> Batch:
    """Replace the label maps ``names`` (uint8 [B, 1, H, W]) by pictures (uint8 [B, 3, H, W])."""
    colors = torch.from_numpy(label_colors())
    pictures = {name: colors[batch[name][:, 0].long().cpu()] for name in names}
    return {**batch, **{name: values.permute(0, 3, 1, 2) for name, values in pictures.items()}}
