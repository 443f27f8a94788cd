"""Image bytes to pixels, and pixels to a transform's window: one contract, whatever the file format.

- Pixels are uint8 [H, W, C]; C is 1 (gray) or 3 (RGB), as the store's field says.
- EXIF orientation is applied, all eight. Where a file says none, or nothing that makes sense, it stands upright.
- Alpha is dropped: colors are as stored, blended with nothing. Palettes become colors. Color profiles and gamma are not looked at.
- CMYK and YCCK JPEGs are read as Adobe writes them (inverted), whether they say so or not: red is cyan times black over 255.
- Gray is 0.299 red + 0.587 green + 0.114 blue, rounded. A YCbCr JPEG's Y is just that and is taken as it is: beside the gray of its
  RGB it differs by less than 1 level on average, by more where the RGB had to be clipped.
- Of an animation, of several pages, of more than 8 bits there is no one reading: they are refused. So is a truncated file.

JPEG goes to libjpeg-turbo through simplejpeg, which releases the GIL; the rest, and JPEGs with rare subsampling, to OpenCV.
``tests/data/test_golden_pixels.py`` holds OpenCV, simplejpeg, Pillow and DALI to this.
"""

import os
import zlib
from typing import Any

LARGEST = (
    1 << 28
)  # pixels; what OpenCV may take at all, should it read a header otherwise than we do
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(LARGEST))  # read when cv2 is loaded

import cv2  # noqa: E402
import numpy as np  # noqa: E402
import simplejpeg  # noqa: E402

from framework.image.header import BadImage, ImageHeader, plain_tiff, png_chunks, read_header  # noqa: E402
from framework.image.scale import scale  # noqa: E402

cv2.setNumThreads(0)  # our workers are the parallelism; OpenCV's own threads would fight them
cv2.utils.logging.setLogLevel(
    cv2.utils.logging.LOG_LEVEL_SILENT
)  # what is wrong with an image is for our errors to say
MAX_PIXELS = (
    64_000_000  # checked in the header, before memory is taken: a 49 kB PNG may declare 400 million
)


def decode(data: Any, channels: int, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """The image in ``data`` (bytes or a buffer) as uint8 [H, W, channels], upright. Raises BadImage."""
    header = accepted_header(data, max_pixels)
    return orient(stored(data, header, channels, 1), header.orientation)


def decode_shrunk(
    data: Any, channels: int, least: tuple[int, int], max_pixels: int = MAX_PIXELS
) -> np.ndarray:
    """As ``decode``, but a JPEG comes at the smallest of 1, 1/2, 1/4, 1/8 of its size that is ``least`` (height, width) or more.

    All of the file is read all the same: it is as good a check. What else libjpeg could scale to, it does slower than full size.
    """
    header = accepted_header(data, max_pixels)
    height, width = header.size
    factors = [
        factor
        for factor in (8, 4, 2)
        if -(-height // factor) >= least[0] and -(-width // factor) >= least[1]
    ]
    factor = factors[0] if factors and header.format == "jpeg" else 1
    return orient(stored(data, header, channels, factor), header.orientation)


def decode_deep(data: Any, channels: int, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """As ``decode``, but uint16 [H, W, channels]: 16-bit files as they are, others times 257. Raises BadImage."""
    header = accepted_header(data, max_pixels, deepest=16)
    if header.bit_depth <= 8:
        return orient(stored(data, header, channels, 1), header.orientation) * np.uint16(257)
    image = _opencv(data, header, cv2.IMREAD_ANYDEPTH | cv2.IMREAD_COLOR, np.uint16)
    image = cv2.cvtColor(
        image, cv2.COLOR_BGR2RGB
    )  # IMREAD_COLOR_RGB: OpenCV 5.0.0 gives what was in memory for a 16-bit TIFF
    return orient(convert(image, channels, header.colors), header.orientation)


def accepted_header(data: Any, max_pixels: int = MAX_PIXELS, deepest: int = 8) -> ImageHeader:
    """The header of an image that may be decoded: BadImage also for what is refused. No pixel is looked at."""
    header = read_header(data)
    if header.height * header.width > max_pixels:
        raise BadImage(
            f"{header.height} x {header.width} pixels are more than {max_pixels}, which pack.max_pixels may raise"
        )
    if header.frames > 1:
        raise BadImage("an animation, or several pages: extract the frames")
    if header.bit_depth > deepest:
        hint = (
            "pack it with pack.bit_depth=8 or 16"
            if header.bit_depth == 16 and deepest == 8
            else "convert it to 8 or 16 bits"
        )
        raise BadImage(f"more than {deepest} bits a channel: {hint}")
    return header


def image_size(data: Any) -> tuple[int, int]:
    """(height, width) of the upright image, from the header. Raises BadImage."""
    return read_header(data).size


def num_channels(data: Any) -> int:
    """1 for a gray image, 3 for any other, from the header. Raises BadImage."""
    return read_header(data).colors


def orient(image: np.ndarray, orientation: int) -> np.ndarray:
    """[H, W, C] as stored -> upright, by EXIF's orientation; contiguous where it was."""
    if orientation >= 5:
        image = _as_three(cv2.transpose(image))
    code = {2: 1, 3: -1, 4: 0, 6: 1, 7: -1, 8: 0}.get(orientation)
    return image if code is None else _as_three(cv2.flip(image, code))


def stored(data: Any, header: ImageHeader, channels: int, factor: int) -> np.ndarray:
    """uint8 [H, W, channels] as the file has it, not upright; a JPEG at 1 / ``factor`` (1, 2, 4, 8) of its size. Raises BadImage."""
    try:
        if header.format == "jpeg":
            return _jpeg(data, header, channels, factor)
    except ValueError as error:
        if "subsampling level" not in str(
            error
        ):  # else TurboJPEG does not know it, but OpenCV's libjpeg does
            raise BadImage(str(error)) from error
    image = convert(_opencv(data, header, cv2.IMREAD_COLOR_RGB, np.uint8), channels, header.colors)
    size = -(-header.width // factor), -(-header.height // factor)
    return (
        image if factor == 1 else _as_three(cv2.resize(image, size, interpolation=cv2.INTER_AREA))
    )


def _jpeg(data: Any, header: ImageHeader, channels: int, factor: int) -> np.ndarray:
    least = (-(-header.height // factor), -(-header.width // factor)) if factor > 1 else (0, 0)
    form = "CMYK" if header.channels == 4 else "RGB" if channels == 3 else "GRAY"
    image = simplejpeg.decode_jpeg(
        data, colorspace=form, min_height=least[0], min_width=least[1], strict=True
    )
    if form != "CMYK":
        return image
    *inks, black = cv2.split(image)
    return convert(cv2.merge([cv2.multiply(ink, black, scale=1 / 255) for ink in inks]), channels)


def check_png(data: Any) -> None:
    """Check a PNG's checksums, of which libpng would print what is wrong. Raises BadImage."""
    view = memoryview(data)
    for _, at, length in png_chunks(view):
        if zlib.crc32(view[at - 4 : at + length]) != int.from_bytes(
            view[at + length : at + length + 4], "big"
        ):
            raise BadImage("damaged: a checksum does not match")


def _opencv(data: Any, header: ImageHeader, flags: int, dtype: Any) -> np.ndarray:
    """[H, W, 3] as stored: orientation is our business, whatever OpenCV makes of it."""
    if header.format == "png":
        check_png(data)
    source = plain_tiff(data) if header.format == "tiff" else data
    try:
        image = cv2.imdecode(np.frombuffer(source, np.uint8), flags | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error:
        image = None
    if image is None or image.shape != (header.height, header.width, 3) or image.dtype != dtype:
        raise BadImage(
            f"a {header.format.upper()} that is truncated, damaged, or of a kind that is not read"
        )
    return image


def convert(image: np.ndarray, channels: int, colors: int = 3) -> np.ndarray:
    """[H, W, 1 or 3] -> [H, W, channels]; where ``colors`` is 1 the three are equal, and one of them is the gray."""
    if image.shape[2] == channels:
        return image
    if channels == 3:
        return cv2.cvtColor(image, cv2.COLOR_GRAY2RGB)
    return _as_three(
        cv2.extractChannel(image, 0) if colors == 1 else cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    )


def _as_three(image: np.ndarray) -> np.ndarray:
    """[H, W] -> [H, W, 1]: OpenCV leaves out a last dimension of 1."""
    return image.reshape(*image.shape[:2], -1)


def cut(
    image: np.ndarray,
    window: tuple[int, int, int, int, int],
    size: tuple[int, int] | None,
    antialias: bool = True,
) -> np.ndarray:
    """``window`` (top, left, height, width, flip) of an [H, W, C] image, scaled to ``size`` by ``scale.scale``, as contiguous [C, h, w].

    Bit 0 of flip: mirrored left to right; bit 1: upside down.
    """
    top, left, height, width, flip = window
    part = image[top : top + height, left : left + width]
    part = part if size is None else scale(part, size, antialias)
    part = part[:: -1 if flip & 2 else 1, :: -1 if flip & 1 else 1]
    return np.ascontiguousarray(part.transpose(2, 0, 1))


def encode_png(image: np.ndarray) -> bytes:
    """uint8 [C, H, W], C 1 or 3, as a PNG file."""
    pixels = image.transpose(1, 2, 0)
    return cv2.imencode(".png", pixels[:, :, ::-1] if pixels.shape[2] == 3 else pixels)[1].tobytes()


def encode_jpeg(image: np.ndarray, quality: int) -> bytes:
    """uint8 [C, H, W], C 1 or 3, as a JPEG file; colors at half the resolution (4:2:0). ``quality``: libjpeg's, 1 to 100."""
    pixels = np.ascontiguousarray(image.transpose(1, 2, 0))
    form, colors = ("GRAY", "Gray") if pixels.shape[2] == 1 else ("RGB", "420")
    return simplejpeg.encode_jpeg(pixels, quality=quality, colorspace=form, colorsubsampling=colors)


def image_suffix(data: bytes) -> str:
    """The file ending for an image's bytes."""
    return {"jpeg": ".jpg", "tiff": ".tif"}.get(found := read_header(data).format, f".{found}")
