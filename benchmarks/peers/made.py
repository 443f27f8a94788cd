"""The data every contestant's format is made from: files for A and B, raw.npy for C and D."""

import io
import os
import tarfile
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

ENDINGS = (".jpg", ".jpeg", ".png")
SHORTER_SIDE, QUALITY = 256, 90


def images_in(path: str) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of every image in a folder or tar file, in an order of its own."""
    if os.path.isdir(path):
        for file in Path(path).rglob("*"):
            if file.suffix.lower() in ENDINGS:
                yield str(file.relative_to(path)), file.read_bytes()
        return
    with tarfile.open(path) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.name.lower().endswith(ENDINGS) else None
            if content is not None:
                yield member.name, content.read()


def make_full_size(source: str, folder: str, count: int) -> None:
    """A: the first ``count`` files in the order of their names, unchanged; each in a folder of its own, which is its class."""
    chosen = sorted(images_in(source))[:count]
    if len(chosen) < count:
        raise ValueError(
            f"{source}: {len(chosen)} images, {count} wanted; give more, or --records {len(chosen)}"
        )
    for number, (name, data) in enumerate(chosen):
        place = Path(folder, "files", f"{number:06}", Path(name).with_suffix(".jpg").name)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


def prepared(data: bytes) -> bytes:
    """The image with a shorter side of 256 pixels, as a JPEG of quality 90, by Pillow."""
    with Image.open(io.BytesIO(data)) as file:
        image = ImageOps.exif_transpose(file).convert("RGB")
    scale = SHORTER_SIDE / min(image.size)
    image = image.resize(
        (round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR
    )
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def prepare_file(pair: tuple[Path, Path]) -> None:
    source, place = pair
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(prepared(source.read_bytes()))


def make_prepared(full_size: str, folder: str, num_workers: int) -> None:
    """B, from A."""
    files = sorted(Path(full_size, "files").glob("*/*"))
    with Pool(num_workers) as pool:
        pool.map(
            prepare_file, [(path, Path(folder, path.relative_to(full_size))) for path in files]
        )


def make_raw(prepared_folder: str, full_size: str, folder: str) -> None:
    """C, from B: the middle 256 x 256 pixels, [N, 256, 256, 3]; ``full-size`` leads to A for those who store another size."""
    files = sorted(Path(prepared_folder, "files").glob("*/*"))
    pixels = np.empty((len(files), SHORTER_SIDE, SHORTER_SIDE, 3), np.uint8)
    for number, path in enumerate(files):
        with Image.open(path) as image:
            pixels[number] = np.asarray(ImageOps.fit(image, (SHORTER_SIDE, SHORTER_SIDE)))
    os.makedirs(folder, exist_ok=True)
    np.save(Path(folder, "raw.npy"), pixels)
    Path(folder, "full-size").symlink_to(os.path.abspath(full_size))


def make_small(source: str, folder: str, count: int) -> None:
    """D and E: the pixels of CIFAR's training images, [N, 32, 32, 3]."""
    chosen: list[Any] = sorted(
        (name, data) for name, data in images_in(source) if "test" not in name and "val" not in name
    )[:count]
    if len(chosen) < count:
        raise ValueError(f"{source}: {len(chosen)} images for training, {count} wanted")
    pixels = np.stack(
        [np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for _, data in chosen]
    )
    if pixels.shape[1:] != (32, 32, 3):
        raise ValueError(f"{source}: images of {pixels.shape[1:]}, not 32 x 32")
    os.makedirs(folder, exist_ok=True)
    np.save(Path(folder, "raw.npy"), pixels)
