"""Measure how far our pixels are from Pillow's: ``python -m peers.difference FOLDER ...``.

Pillow cuts the same windows of the same files as our Source, and scales them with its antialiased
bilinear filter. The result is printed as JSON.
"""

import json
import os
import sys
from functools import partial
from typing import Any

import numpy as np
import torch
from peers.ours import SEED, part
from peers.work import SIZE
from PIL import Image

from framework.contracts.data import SourceContext
from framework.data.folder import folder_source
from framework.order.batches import Order
from framework.order.draws import ON_HOST, draws


def by_pillow(path: str, window: list[int]) -> np.ndarray:
    """Return uint8 [3, SIZE, SIZE]: a window of an image file, scaled by Pillow."""
    top, left, height, width, flip = window
    with Image.open(path) as file:
        image = file.convert("RGB")
    image = image.resize(
        (SIZE, SIZE), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height)
    )
    pixels = np.asarray(image).transpose(2, 0, 1)
    return pixels[:, :, ::-1] if flip else pixels


def differences(folder: str, antialias: bool) -> list[tuple[bool, np.ndarray]]:
    """Compare every image of a folder with Pillow's result.

    Returns:
        For each image, whether its window is shrunk, and how many of its values differ by 0, 1, 2,
        ... levels (int64 [256]).
    """
    transform = part("transform", "random_resized_crop", antialias=antialias)
    context = SourceContext(
        partial(Order, batch_size=64, seed=SEED),
        transform,
        seed=SEED,
        num_workers=None,
        worker_kind="thread",
        num_cores=1,
    )
    source = folder_source(folder, context=context)
    images: list[tuple[bool, np.ndarray]] = []
    files = sorted(
        os.path.join(place, name) for place, _, names in os.walk(folder) for name in names
    )
    for batch, _, _ in source.batches(0):
        paths = [files[number] for number in batch["index"].tolist()]
        sizes = [Image.open(path).size[::-1] for path in paths]
        windows = transform.windows(
            torch.tensor(sizes), draws(batch["index"], SEED, 0, transform.num_draws, ON_HOST)
        ).tolist()
        for path, window, ours in zip(paths, windows, batch["image"].numpy(), strict=True):
            gap = np.abs(by_pillow(path, window).astype(int) - ours)
            images.append(
                (window[2] >= SIZE and window[3] >= SIZE, np.bincount(gap.ravel(), minlength=256))
            )
    source.close()
    return images


def summary(filter_: str, windows: str, counts: list[np.ndarray]) -> dict[str, Any]:
    """Return a row of the report: the mean, 99.9 % and largest difference, in levels (0 to 255)."""
    total = np.sum(counts, axis=0)
    return {
        "filter": filter_,
        "windows": f"{windows} ({len(counts)})",
        "mean": float((total * np.arange(256)).sum() / total.sum()),
        "p999": int(np.searchsorted(total.cumsum() / total.sum(), 0.999)),
        "largest": int(np.flatnonzero(total).max()),
    }


def main(data: str) -> None:
    rows, count = list[dict[str, Any]](), 0
    for filter_, antialias in (("antialiased", True), ("linear", False)):
        images = differences(os.path.join(data, "files"), antialias)
        count = len(images)
        rows.append(summary(filter_, "all", [counts for _, counts in images]))
        for windows, wanted in (("shrunk", True), ("grown in one direction at least", False)):
            chosen = [counts for shrunk, counts in images if shrunk is wanted]
            rows += [summary(filter_, windows, chosen)] if chosen else []
    print(json.dumps({"images": count, "rows": rows}))


if __name__ == "__main__":
    main(sys.argv[1])
