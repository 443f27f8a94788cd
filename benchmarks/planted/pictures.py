"""Pictures with a photograph's spectrum, as files and as stores."""

from pathlib import Path

import cv2
import numpy as np

from framework.contracts.records import Field, Manifest
from framework.store.hdf5_store import HDF5Writer

CLASSES = ("near", "far")
# Arguments of OpenCV's encoder, by the ending of a file.
QUALITY: dict[str, list[int]] = {
    ".jpg": [cv2.IMWRITE_JPEG_QUALITY, 90],
    ".png": [cv2.IMWRITE_PNG_COMPRESSION, 6],
    ".webp": [cv2.IMWRITE_WEBP_QUALITY, 90],
    ".bmp": [],
}


def photograph(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Return uint8 [height, width, 3]: noise of every scale, the coarser the stronger."""
    image = np.full((height, width, 3), 128, np.float32)
    longest = max(height, width)
    cells = 4
    while cells < longest:
        shape = (max(1, cells * height // longest) + 1, cells + 1, 3)
        grid = rng.normal(0, 1, shape).astype(np.float32)
        layer = cv2.resize(grid, (width, height), interpolation=cv2.INTER_LINEAR)
        image += 90 * cells**-0.5 * layer
        cells *= 3
    return np.clip(image, 0, 255).astype(np.uint8)


def write_folder(
    path: Path, count: int, height: int, width: int, ending: str = ".jpg", num_different: int = 64
) -> str:
    """Write image files, half of them in each class, and return the path. Images repeat."""
    rng = np.random.default_rng(0)
    if path.exists():
        return str(path)
    files: list[bytes] = []
    for _ in range(min(count, num_different)):
        image = photograph(rng, height, width)
        files.append(cv2.imencode(ending, image, QUALITY[ending])[1].tobytes())
    for number in range(count):
        folder = path / CLASSES[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:05d}{ending}").write_bytes(files[number % len(files)])
    return str(path)


def write_raw(
    path: Path,
    count: int,
    size: int,
    num_different: int = 256,
) -> str:
    """Write raw records uint8 [3, size, size], and return the path. Images repeat."""
    if path.exists():
        return str(path)
    rng = np.random.default_rng(0)
    fields = {"image": Field("uint8", (3, size, size)), "label": Field("int64", ())}
    writer = HDF5Writer(str(path), fields=fields, num_records=count)
    few = [photograph(rng, size, size).transpose(2, 0, 1) for _ in range(min(count, num_different))]
    pixels = np.stack([few[number % len(few)] for number in range(count)])
    keys = [str(number) for number in range(count)]
    writer.write({"image": pixels, "label": np.arange(count) % 2}, keys)
    writer.close(Manifest(count, fields, CLASSES, source="made"))
    return str(path)
