"""Whole files of every kind that is read, and ways to damage them."""

import random
import struct
import zlib
from functools import cache

import cv2
import numpy as np
from PIL import Image

from tests.contract.cases import pixels
from tests.media import test_golden_pixels, test_scale
from tests.media import test_golden_pixels as golden

ADAM7 = (  # PNG, 8.2: x, y, steps
    *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2)),
    (0, 1, 1, 2),
)
EXTREMES = [
    *(b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x00\x00\xff\xff"),
    *(b"\x01\x00\x00\x00", b"\xff\xff"),
]
NUM_REPEATS = (2, 10, 1000)
LARGEST = 2 << 20


def interlaced(image: np.ndarray) -> bytes:
    """Return a PNG of uint8 [H, W, 3] in Adam7's seven passes, which no library here writes."""
    height, width = image.shape[:2]
    parts = (image[y::down, x::right] for x, y, right, down in ADAM7)
    lines = b"".join(b"\0" + line.tobytes() for part in parts if part.size for line in part)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 1)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@cache
def images() -> dict[str, bytes]:
    """Return image files by kind, small ones of every sort and some of more pixels than header."""
    photo = Image.fromarray(pixels(3, 150, 200))
    deep = np.random.default_rng(0).integers(0, 65536, (24, 32, 3), np.uint16)
    large = {
        "jpeg 4:2:0 large": test_scale.encoded(150, 200),
        "jpeg 4:4:4 large": test_scale.encoded(150, 200, "444"),
        "jpeg 4:1:1": test_scale.encoded(64, 80, "411"),
        "jpeg gray large": test_scale.encoded(150, 200, "Gray"),
        "jpeg progressive large": test_scale.encoded(150, 200, progressive=True),
        "jpeg restart markers": test_scale.encoded(150, 200, restart_marker_blocks=3),
        "png large": test_golden_pixels.saved(photo, "png"),
        "webp large": test_golden_pixels.saved(photo, "webp", quality=80),
        "gif large": test_golden_pixels.saved(photo.convert("P"), "gif"),
        "tiff deflate": test_golden_pixels.saved(photo, "tiff", compression="tiff_adobe_deflate"),
        "tiff jpeg": test_golden_pixels.saved(photo, "tiff", compression="jpeg"),
        "tiff packbits": test_golden_pixels.saved(photo, "tiff", compression="packbits"),
        "tiff group 4": test_golden_pixels.saved(golden.BILEVEL, "tiff", compression="group4"),
    }
    rare = {
        "png interlaced": interlaced(golden.COLOR),
        "png 16 bits RGB": cv2.imencode(".png", deep)[1].tobytes(),
        "tiff 16 bits RGB": cv2.imencode(".tiff", deep)[1].tobytes(),
        "bmp large": test_golden_pixels.saved(photo, "bmp"),
    }
    noted = {
        name: data
        for name, data in golden.ACCEPTED.items()
        if "EXIF" not in name or name.endswith("6")
    }
    refused = {name: data for name, (data, _) in golden.REFUSED.items()}
    return {
        **{f"jpeg {name}" if name in golden.JPEG else name: data for name, data in noted.items()},
        **refused,
        **rare,
        **large,
    }


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Damage ``data`` in one to three ways."""
    ways = (flipped, flipped, cut_off, spliced, enlarged, enlarged, in_the_head, repeated)
    for _ in range(draw.choice((1, 1, 2, 3))):
        data = draw.choice(ways)(data, draw)
    return mended(data) if data.startswith(b"\x89PNG") and draw.random() < 0.8 else data


def flipped(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 3, 20)) if data else 0):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def cut_off(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randint(0, len(data))]


def spliced(data: bytes, draw: random.Random) -> bytes:
    """Insert a piece of ``data`` or of another kind of image somewhere, or overwrite with it."""
    other = draw.choice([data, *images().values()])
    start = draw.randint(0, len(other))
    piece = other[start : start + draw.randint(0, 200)]
    at = draw.randint(0, len(data))
    return data[:at] + piece + data[at + draw.choice((0, len(piece))) :]


def enlarged(data: bytes, draw: random.Random) -> bytes:
    """Write an extreme number where sizes are: in the first bytes, or a JPEG's frame header."""
    frame = max(data.find(marker) for marker in (b"\xff\xc0\x00", b"\xff\xc2\x00"))
    if data[:2] == b"\xff\xd8" and frame > 0:
        size = struct.pack(">HH", *(draw.choice((0, 1, 500, 8000, 16000, 65535)) for _ in range(2)))
        return data[: frame + 5] + size + data[frame + 9 :]
    at = draw.randint(4, 40)
    sizes = [struct.pack(f"{order}I", draw.choice((500, 7000))) for order in "><"]
    number = draw.choice([*EXTREMES, *sizes])
    return data[:at] + number + data[at + len(number) :]


def in_the_head(data: bytes, draw: random.Random) -> bytes:
    """Change a byte at the beginning, where a file says what it is."""
    at = draw.randrange(min(len(data), 100)) if data else 0
    byte = draw.choice((0, 1, 2, 3, 8, 16, 255, draw.randrange(256)))
    return data[:at] + bytes([byte]) + data[at + 1 :]


def repeated(data: bytes, draw: random.Random) -> bytes:
    """Repeat a piece many times: scans, segments, directories."""
    start = draw.randint(0, len(data))
    piece = data[start : start + draw.choice((4, 60, 2000))]
    return data[:start] + (piece * draw.choice(NUM_REPEATS))[:LARGEST] + data[start:]


def mended(data: bytes) -> bytes:
    """Give the chunks of a PNG fitting checksums, so that a decoder reads their content."""
    fixed, at = bytearray(data), 8
    while at + 12 <= len(fixed):
        end = at + 8 + int.from_bytes(fixed[at : at + 4], "big")
        if end + 4 > len(fixed):
            break
        struct.pack_into(">I", fixed, end, zlib.crc32(fixed[at + 4 : end]))
        at = end + 4
    return bytes(fixed)


def png_bomb() -> bytes:
    """Return a PNG of 2.7 GB in a few bytes; the bytes end early."""
    head = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1 << 20))
    chunks = ((b"IHDR", head), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks)
