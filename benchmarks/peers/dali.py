"""NVIDIA DALI on the CPU, with its own readers, fused decode-and-crop and torch iterator."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator
from peers.work import FLIP, MEAN, PADDING, RATIO, SCALE, SIZE, STD, Epoch, Work
from torch import Tensor


def jpeg(work: Work) -> Epoch:
    """Return epochs of A or B that read image files.

    ``image_random_crop`` decodes only what the crop needs.
    """
    files = work.files()

    def images() -> tuple[Any, Any]:
        data, label = fn.readers.file(
            files=files,
            labels=list(range(len(files))),
            shuffle_after_epoch=True,
            pad_last_batch=True,
            name="reader",
        )
        image = fn.decoders.image_random_crop(
            data, output_type=types.RGB, random_area=SCALE, random_aspect_ratio=RATIO
        )
        return fn.resize(
            image, size=(SIZE, SIZE), interp_type=types.INTERP_LINEAR, antialias=work.antialias
        ), label

    return _epochs(work, images)


def raw(work: Work) -> Epoch:
    """Return epochs of C that read a .npy file per image, as DALI's numpy reader needs them."""

    def images() -> tuple[Any, Any]:
        options = {
            "file_root": work.path("npy"),
            "shuffle_after_epoch": True,
            "pad_last_batch": True,
        }
        image = fn.readers.numpy(file_filter="*.image.npy", name="reader", seed=1, **options)
        label = fn.readers.numpy(file_filter="*.label.npy", seed=1, **options)
        image = fn.reshape(image, layout="HWC")
        size = {
            "size": (SIZE, SIZE),
            "interp_type": types.INTERP_LINEAR,
            "antialias": work.antialias,
        }
        return fn.random_resized_crop(
            image, random_area=SCALE, random_aspect_ratio=RATIO, **size
        ), label

    return _epochs(work, images)


def _epochs(work: Work, images: Callable[[], tuple[Any, Any]]) -> Epoch:
    @pipeline_def(batch_size=work.batch_size, num_threads=work.num_workers, device_id=None, seed=1)
    def pipeline() -> tuple[Any, Any]:
        image, label = images()
        flip = fn.random.coin_flip(probability=FLIP)
        image = fn.crop_mirror_normalize(
            image, mirror=flip, dtype=types.UINT8, output_layout="CHW", mean=[0.0], std=[1.0]
        )
        return image, label

    policy = {"last_batch_policy": LastBatchPolicy.PARTIAL, "auto_reset": True}
    return _batches(
        DALIGenericIterator([pipeline()], ["image", "label"], reader_name="reader", **policy)
    )


def _batches(iterator: DALIGenericIterator) -> Epoch:
    def epoch(number: int) -> Iterator[tuple[Tensor, Tensor]]:
        for (batch,) in iterator:
            yield batch["image"], batch["label"]

    return epoch


def small(work: Work) -> Epoch:
    """Return epochs of E that read batches from memory by ``external_source``.

    ``slice`` crops beyond the edge. A single operator flips and normalizes.
    """
    feed = _Feed(work)

    @pipeline_def(batch_size=work.batch_size, num_threads=work.num_workers, device_id=None, seed=1)
    def pipeline() -> tuple[Any, Any]:
        image, label = fn.external_source(
            source=feed, num_outputs=2, batch=True, cycle="raise", layout=["HWC", ""]
        )
        corner = fn.cast(
            fn.random.uniform(values=list(range(-PADDING, PADDING + 1)), shape=2), dtype=types.INT32
        )
        options = {
            "axes": (0, 1),
            "out_of_bounds_policy": "pad",
            "normalized_anchor": False,
            "normalized_shape": False,
        }
        image = fn.slice(image, corner, [32, 32], **options)
        mean, std = [255 * m for m in MEAN], [255 * s for s in STD]
        flip = fn.random.coin_flip(probability=FLIP)
        image = fn.crop_mirror_normalize(
            image, mirror=flip, dtype=types.FLOAT, output_layout="CHW", mean=mean, std=std
        )
        return image, label

    return _batches(DALIGenericIterator([pipeline()], ["image", "label"], auto_reset=True))


class _Feed:
    """An iterator of shuffled batches in memory, which draws a new order at each ``iter``."""

    def __init__(self, work: Work) -> None:
        self.work, self.pixels = work, np.load(work.path("raw.npy"))

    def __iter__(self) -> "_Feed":
        self.batches = iter(torch.randperm(self.work.num_records).split(self.work.batch_size))
        return self

    def __next__(self) -> tuple[np.ndarray, np.ndarray]:
        indices = next(self.batches).numpy()
        return self.pixels[indices], indices


def make_raw(work: Work) -> None:
    """Write two .npy files for every image of C: its pixels and its number."""
    os.makedirs(work.path("npy"), exist_ok=True)
    for number, image in enumerate(np.load(work.path("raw.npy"), mmap_mode="r")):
        np.save(work.path(f"npy/{number:06}.image.npy"), image)
        np.save(work.path(f"npy/{number:06}.label.npy"), np.array([number]))
