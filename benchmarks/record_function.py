"""Measure what a function of each record costs beyond its own time.

    python -m benchmarks.record_function [--rounds 30]

The function returns its images as they are, so that the whole cost is ours. For each kind of
record, the same batch of 64 is read in turn without a function, with it, and as people write it in
a Dataset: Pillow, NumPy, the function, and a stack of tensors. Everything runs in one thread. The
script prints the microseconds of a record: the median of the rounds, and the quartiles.
"""

import argparse
import io
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image

from framework.contracts.data import Transform
from framework.contracts.records import Field
from framework.data.reader import BatchReader, Request
from framework.store.open_store import open_store
from framework.transform.function import FunctionTransform
from framework.transform.none import NoTransform
from framework.transform.resize import Resize
from tests.conftest import make_context, write_store

BATCH = 64
QUARTERS = (25, 50, 75)
SIZES = {"small": (32, 32), "large": (320, 280)}


def same(images, rng):
    return images


def jpeg(number: int, size: tuple[int, int]) -> bytes:
    """Return a smooth picture with a little noise."""
    rng = np.random.default_rng(number)
    noise = rng.integers(0, 40, (*size, 3))
    ramp = np.add.outer(np.arange(size[0]), np.arange(size[1]))[..., None] % 200
    data = io.BytesIO()
    Image.fromarray((ramp + noise).astype(np.uint8)).save(data, "jpeg", quality=90)
    return data.getvalue()


def as_people_write_it(files: list[bytes], size: tuple[int, int] | None) -> torch.Tensor:
    """Read JPEGs as a usual Dataset does. Return uint8 [B, C, h, w]."""
    tensors: list[torch.Tensor] = []
    for data in files:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        if size is not None:
            image = image.resize(size[::-1], Image.Resampling.BILINEAR)
        changed = same({"image": np.array(image)}, np.random.default_rng(0))["image"]
        tensors.append(torch.from_numpy(np.ascontiguousarray(changed.transpose(2, 0, 1))))
    return torch.stack(tensors)


def reading(path: str, transform: Transform) -> Callable[[], object]:
    """Return a function that reads the first batch of a store."""
    reader = BatchReader(open_store(path), make_context(BATCH, 0, "thread", transform))
    request = Request(0, torch.arange(BATCH), training=True)
    return lambda: reader(request)


def measure(contestants: dict[str, Callable[[], object]], rounds: int) -> dict[str, np.ndarray]:
    """Run the contestants in turn. Return the quartiles of each one's microseconds a record."""
    took_us: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 2):  # two of burn-in
        for name, read in contestants.items():
            start = time.perf_counter()
            read()
            if number > 1:
                took_us[name].append(1e6 * (time.perf_counter() - start) / BATCH)
    return {name: np.percentile(values, QUARTERS) for name, values in took_us.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    labels = np.zeros(BATCH, np.int64)
    with tempfile.TemporaryDirectory() as folder:
        for name, size in SIZES.items():
            files = [jpeg(number, size) for number in range(BATCH)]
            fields = {
                "image": Field("uint8", (None, None, 3), "image"),
                "label": Field("int64", ()),
            }
            path = write_store(f"{folder}/{name}.h5", {"image": files, "label": labels}, fields)
            for scaled in (None, (size[0] * 3 // 4, size[1] * 3 // 4)):
                geometry = NoTransform() if scaled is None else Resize(list(scaled), False, True)
                quartiles_us = measure(
                    {
                        "without": reading(path, geometry),
                        "with a function": reading(path, FunctionTransform(same, geometry, True)),
                        "in a Dataset": lambda files=files, scaled=scaled: as_people_write_it(
                            files, scaled
                        ),
                    },
                    rounds,
                )
                print(f"JPEG {size[0]}x{size[1]}, scaled to {scaled}:")
                for contestant, (low, middle, high) in quartiles_us.items():
                    print(f"  {contestant:16} {middle:8.1f} us ({low:.1f}, {high:.1f})")


if __name__ == "__main__":
    main()
