"""Reads the header of an image file without decoding it: pure Python that checks every offset.

Source: the specifications of the formats; EXIF 2.32, 4.6.4 for the orientation.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

MAX_PIXELS = 64_000_000  # checked before memory is taken: a 49 kB PNG may declare 400 million
MAX_PARTS = 10_000  # segments or chunks: a file of many tiny ones would take seconds
ORIENTATION = 0x0112


class BadImage(ValueError):
    """The bytes are not an image that can be decoded. The caller names the record."""


class ImageHeader(NamedTuple):
    """What a header says about its image."""

    format: str  # jpeg, png, gif, webp, bmp or tiff
    height: int  # pixels, as stored
    width: int  # pixels, as stored
    channels: int  # 1 gray, 2 gray and alpha, 3 color or palette, 4 color and alpha or CMYK
    bit_depth: int = 8  # per channel
    orientation: int = 1  # EXIF's, 1 to 8; 1 is upright
    frames: int = 1  # 1, or 2 for any larger number

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the upright image."""
        if self.orientation >= 5:  # it lies on its side
            return self.width, self.height
        return self.height, self.width

    @property
    def colors(self) -> int:
        """1 for a gray image, 3 for all others."""
        return 1 if self.channels < 3 else 3


def read_header(data: Any) -> ImageHeader:
    """Return the header of the image file in ``data``, bytes or a buffer. Raises BadImage only."""
    view: Any = data if isinstance(data, bytes) else memoryview(data).cast("B")
    head = bytes(view[:32])
    read = next((reader for magic, reader in READERS.items() if head.startswith(magic)), None)
    if read is None or (read is _webp and head[8:12] != b"WEBP"):
        what = "no kind of image known here"
        if not head:
            what = "empty"
        elif not head.strip(b"\x00"):
            what = "only zeros, not an image"
        elif all(byte in b"\t\r\n" or byte >= 32 for byte in head):
            what = "text, not an image"
        elif head[4:8] == b"ftyp":
            what = f"a file of kind {head[8:12].decode('ascii', 'replace').strip()!r}"
        raise BadImage(f"{what}; JPEG, PNG, GIF, WebP, BMP and TIFF are read")
    try:
        header = read(view)
    except (IndexError, struct.error) as error:
        raise BadImage("truncated") from error
    if header.height < 1 or header.width < 1:
        raise BadImage(f"{header.height} x {header.width} pixels")
    return header


def is_image(data: Any) -> bool:
    """Return whether a file begins as an image whose size can be read."""
    with suppress(ValueError):  # also BadImage
        return bool(read_header(data))
    return False


def _jpeg(data: Any) -> ImageHeader:
    at, orientation = 2, 1
    for _ in range(MAX_PARTS):
        if data[at] != 0xFF:
            raise BadImage("a damaged JPEG: a marker is missing")
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
            continue
        length = data[at + 2] << 8 | data[at + 3]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height = data[at + 5] << 8 | data[at + 6]
            width = data[at + 7] << 8 | data[at + 8]
            return ImageHeader("jpeg", height, width, data[at + 9], data[at + 4], orientation)
        if marker in (0xD9, 0xDA) or length < 2:
            raise BadImage("a damaged JPEG: no size before its pixels")
        if marker == 0xE1 and data[at + 4 : at + 10] == b"Exif\x00\x00":
            orientation = _exif_orientation(data[at + 10 : at + 2 + length])
        at += 2 + length
    raise BadImage(f"more than {MAX_PARTS} parts before its pixels")


def _exif_orientation(note: Any) -> int:
    """Return the orientation; 1 if it is missing or damaged, since the image itself is good."""
    order = {b"II": "<", b"MM": ">"}.get(bytes(note[:2]))
    if order is None:
        return 1
    with suppress(struct.error):
        (at,) = struct.unpack_from(order + "I", note, 4)
        (count,) = struct.unpack_from(order + "H", note, at)
        entries = note[at + 2 : at + 2 + 12 * count]
        whole = entries[: len(entries) // 12 * 12]
        for tag, kind, _, value, _ in struct.iter_unpack(order + "HHIHH", whole):
            if tag == ORIENTATION and kind == 3 and 1 <= value <= 8:
                return value
    return 1


def png_chunks(data: Any) -> Iterator[tuple[bytes, int, int]]:
    """Yield the kind, the start and the length of each chunk's content up to IEND. BadImage."""
    at = 8
    for _ in range(MAX_PARTS):
        length, kind = struct.unpack_from(">I4s", data, at)
        if at + 12 + length > len(data):
            raise BadImage("truncated")
        yield kind, at + 8, length
        if kind == b"IEND":
            return
        at += 12 + length
    raise BadImage(f"more than {MAX_PARTS} parts")


def _png(data: Any) -> ImageHeader:
    width, height, bit_depth, color = struct.unpack_from(">IIBB", data, 16)
    channels = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}.get(color)
    if bytes(data[12:16]) != b"IHDR" or channels is None:
        raise BadImage("a damaged PNG: no header")
    orientation = frames = 1
    for kind, at, length in png_chunks(data):
        if kind == b"eXIf":
            orientation = _exif_orientation(data[at : at + length])
        elif kind == b"acTL":
            frames = min(2, struct.unpack_from(">I", data, at)[0])
    return ImageHeader("png", height, width, channels, bit_depth, orientation, frames)


def _gif(data: Any) -> ImageHeader:
    def palette_bytes(flags: int) -> int:
        return 3 << (flags & 7) + 1 if flags & 0x80 else 0

    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at = 13 + palette_bytes(flags)
    frames = 0
    while data[at] != 0x3B and frames < 2:
        if data[at] == 0x2C:
            frames += 1
            at += 11 + palette_bytes(data[at + 9])
        elif data[at] == 0x21:
            at += 2
        else:
            raise BadImage("a damaged GIF: a block is missing")
        while data[at]:  # its blocks
            at += data[at] + 1
        at += 1
    if frames == 0:
        raise BadImage("a GIF without a picture")
    return ImageHeader("gif", height, width, 3, frames=frames)


def _webp(data: Any) -> ImageHeader:
    kind = bytes(data[12:16])
    (size,) = struct.unpack_from("<I", data, 4)
    if size + 8 > len(data):
        raise BadImage("truncated")
    if kind == b"VP8 ":
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
        return ImageHeader("webp", height, width, 3)
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        channels = 3 + (bits >> 28 & 1)  # alpha is one bit
        return ImageHeader("webp", (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1, channels)
    if kind != b"VP8X":
        raise BadImage("a damaged WebP: no picture")
    flags = data[20]
    width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    channels = 3 + (flags >> 4 & 1)
    orientation, at = 1, 12
    for _ in range(MAX_PARTS if flags & 0x08 else 0):
        if at + 8 > len(data):
            break
        kind, length = struct.unpack_from("<4sI", data, at)
        if kind == b"EXIF":
            note = bytes(data[at + 8 : at + 8 + length])
            orientation = _exif_orientation(note.removeprefix(b"Exif\x00\x00"))
            break
        at += 8 + length + length % 2
    frames = 1 + (flags >> 1 & 1)
    return ImageHeader("webp", height, width, channels, 8, orientation, frames)


def _bmp(data: Any) -> ImageHeader:
    start, header = struct.unpack_from("<II", data, 10)
    width, height, _, bits, compression = struct.unpack_from("<iiHHI", data, 18)
    (colors,) = struct.unpack_from("<I", data, 46)
    height = abs(height)  # negative: rows from top to bottom
    if header < 40 or bits not in (1, 2, 4, 8, 16, 24, 32):
        raise BadImage("a damaged BMP, or one of OS/2")
    if compression in (0, 3, 6) and start + (width * bits + 31) // 32 * 4 * height > len(data):
        raise BadImage("truncated")
    if bits > 8:
        return ImageHeader("bmp", height, width, 4 if bits == 32 else 3)
    size = 4 * min(colors or 1 << bits, 1 << bits)
    palette = bytes(data[14 + header : 14 + header + size])
    is_gray = palette[0::4] == palette[1::4] == palette[2::4]
    return ImageHeader("bmp", height, width, 1 if is_gray else 3)


LAYOUTS = {1: "B", 3: "H", 4: "I"}  # TIFF's types: byte, short, long
WIDTH, HEIGHT, BITS, PHOTOMETRIC, SAMPLES, NUMBER_FORMAT = 256, 257, 258, 262, 277, 339
ALPHA, STRIPS, STRIP_BYTES, TILES, TILE_BYTES = 338, 273, 279, 324, 325


class _Tags(NamedTuple):
    """The tags of a TIFF's first page."""

    data: Any
    order: str  # of bytes, for struct
    entries: dict[int, tuple[int, int, int]]  # by tag: type, count, and offset of the first value
    more: bool  # whether another page follows

    def values(self, tag: int, *otherwise: int) -> tuple[int, ...]:
        kind, count, at = self.entries.get(tag, (0, 0, 0))
        if kind not in LAYOUTS:
            return otherwise
        if at + count > len(self.data):
            raise BadImage("truncated")
        return struct.unpack_from(f"{self.order}{count}{LAYOUTS[kind]}", self.data, at)


def _tags(data: Any) -> _Tags:
    order = "<" if data[:2] == b"II" else ">"
    (at,) = struct.unpack_from(order + "I", data, 4)
    (count,) = struct.unpack_from(order + "H", data, at)
    entries: dict[int, tuple[int, int, int]] = {}
    for place in range(at + 2, at + 2 + 12 * count, 12):
        tag, kind, number, offset = struct.unpack_from(order + "HHII", data, place)
        inside = number * struct.calcsize("=" + LAYOUTS.get(kind, "Q")) <= 4
        entries[tag] = kind, number, place + 8 if inside else offset
    (next_page,) = struct.unpack_from(order + "I", data, at + 2 + 12 * count)
    return _Tags(data, order, entries, next_page != 0)


def _tiff(data: Any) -> ImageHeader:
    tags = _tags(data)
    for starts, lengths in ((STRIPS, STRIP_BYTES), (TILES, TILE_BYTES)):
        pieces = zip(tags.values(starts), tags.values(lengths), strict=False)
        if max((start + length for start, length in pieces), default=0) > len(tags.data):
            raise BadImage("truncated")
    samples = tags.values(SAMPLES, 1)[0]
    channels = min(max(samples, 3), 4)
    if tags.values(PHOTOMETRIC, 2)[0] in (0, 1):  # gray
        channels = min(samples, 2)
    bit_depth = max(tags.values(BITS, 1), default=1)
    if tags.values(NUMBER_FORMAT, 1)[0] != 1:  # signed, or floating point
        bit_depth = max(bit_depth, 32)
    orientation = tags.values(ORIENTATION, 1)[0]
    if not 1 <= orientation <= 8:
        orientation = 1
    size = tags.values(HEIGHT, 0)[0], tags.values(WIDTH, 0)[0]
    return ImageHeader("tiff", *size, channels, bit_depth, orientation, 1 + tags.more)


READERS = {
    b"\xff\xd8\xff": _jpeg,
    b"\x89PNG\r\n\x1a\n": _png,
    b"GIF87a": _gif,
    b"GIF89a": _gif,
    b"RIFF": _webp,
    b"BM": _bmp,
    b"II*\x00": _tiff,
    b"MM\x00*": _tiff,
}


def white_is_zero(data: Any) -> bool:
    """Return whether a TIFF counts gray from white, so that its pixels must be inverted."""
    return _tags(memoryview(data).cast("B")).values(PHOTOMETRIC, 2)[0] == 0


def plain_tiff(data: Any) -> bytearray:
    """Return a copy that a decoder does not turn or blend: upright, with premultiplied alpha."""
    copy = bytearray(data)
    tags = _tags(copy)
    for tag in (ORIENTATION, ALPHA):
        kind, count, at = tags.entries.get(tag, (0, 0, 0))
        if kind == 3 and count == 1:
            struct.pack_into(tags.order + "H", copy, at, 1)
    return copy
