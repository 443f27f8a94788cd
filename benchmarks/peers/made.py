"""Make the data sets from which every contestant makes its own format.

Each data set is a folder, named after its workload:

- A: full-size JPEG files, unchanged, in ``files/``
- B: the images of A with a shorter side of 256 pixels, as JPEG files of quality 90 in ``files/``
- C: the middle 256 x 256 pixels of the images of B, in ``raw.npy``
- D: images of 32 x 32 pixels, such as CIFAR's training images, in ``raw.npy``
- E: no data of its own; it augments the images of D
- M: the files of B, with a label map (``masks/``) and five boxes (``boxes.npy``) for each
- R: records of 1 to 1,000 random numbers, in ``lengths.npy`` and ``values.npy``
"""

import io
import os
import tarfile
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

LONGEST_RAGGED = 1000  # values
NUM_BOXES = 5  # of an image
ENDINGS = (".jpg", ".jpeg", ".png")
SHORTER_SIDE, QUALITY = 256, 90


def images_in(path: str) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of every image in a folder or tar file, in no defined order."""
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
    """Write A: the first ``count`` image files of ``source`` in the order of their names.

    Files are unchanged. Each has its own subfolder, which is its class.

    Raises:
        ValueError: ``source`` has fewer images.
    """
    chosen = sorted(images_in(source))[:count]
    if len(chosen) < count:
        fix = f"give more, or --images-count {len(chosen)}"
        raise ValueError(f"{source}: {len(chosen)} images, {count} wanted; {fix}")
    for number, (name, data) in enumerate(chosen):
        place = Path(folder, "files", f"{number:06}", Path(name).with_suffix(".jpg").name)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


def prepared(data: bytes) -> bytes:
    """Scale an image file to a shorter side of 256 pixels. Return it as a JPEG of quality 90."""
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
    """Read an image file from the first path, and write it prepared to the second."""
    source, place = pair
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(prepared(source.read_bytes()))


def make_prepared(full_size: str, folder: str, num_workers: int) -> None:
    """Write B from the folder of A."""
    files = sorted(Path(full_size, "files").glob("*/*"))
    with Pool(num_workers) as pool:
        pool.map(
            prepare_file, [(path, Path(folder, path.relative_to(full_size))) for path in files]
        )


def make_raw(prepared_folder: str, full_size: str, folder: str) -> None:
    """Write C from the folder of B: the middle 256 x 256 pixels, uint8 [N, 256, 256, 3].

    The link ``full-size`` leads to A, because some contestants store images of another size.
    """
    files = sorted(Path(prepared_folder, "files").glob("*/*"))
    pixels = np.empty((len(files), SHORTER_SIDE, SHORTER_SIDE, 3), np.uint8)
    for number, path in enumerate(files):
        with Image.open(path) as image:
            pixels[number] = np.asarray(ImageOps.fit(image, (SHORTER_SIDE, SHORTER_SIDE)))
    os.makedirs(folder, exist_ok=True)
    np.save(Path(folder, "raw.npy"), pixels)
    Path(folder, "full-size").symlink_to(os.path.abspath(full_size))


def make_small(source: str, folder: str, count: int) -> None:
    """Write D, which E uses too: the pixels of the training images, uint8 [N, 32, 32, 3].

    Names that contain "test" or "val" are left out.

    Raises:
        ValueError: ``source`` has fewer images than ``count``, or images of another size.
    """
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


def make_marked(prepared_folder: str, folder: str) -> None:
    """Write M from the folder of B: links to its files, label maps and boxes.

    The label map of an image marks five random rectangles, which are also its boxes.
    """
    rng = np.random.default_rng(0)
    boxes: list[np.ndarray] = []
    os.makedirs(Path(folder, "masks"))
    Path(folder, "files").symlink_to(os.path.abspath(Path(prepared_folder, "files")))
    for number, path in enumerate(sorted(Path(folder, "files").glob("*/*"))):
        with Image.open(path) as image:
            width, height = image.size
        corners = np.sort(rng.integers(0, (width, height), (NUM_BOXES, 2, 2)), axis=1)
        corners[:, 1] += 1
        boxes.append(corners.reshape(-1, 4))
        mask = np.zeros((height, width), np.uint8)
        for kind, (left, top, right, bottom) in enumerate(boxes[-1].tolist(), 1):
            mask[top:bottom, left:right] = kind
        Image.fromarray(mask).save(Path(folder, "masks", f"{number:06}.png"))
    np.save(Path(folder, "boxes.npy"), np.array(boxes, np.float32))


def make_ragged(folder: str, count: int) -> None:
    """Write R: ``count`` records of 1 to 1,000 random float32."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, LONGEST_RAGGED + 1, count)
    np.save(Path(folder, "lengths.npy"), lengths)
    np.save(Path(folder, "values.npy"), rng.random(int(lengths.sum()), np.float32))
