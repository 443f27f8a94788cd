"""mosaicml-streaming: MDS shards, StreamingDataset, StreamingDataLoader.

The package imports its text and vision examples, and with them transformers and torchvision.
Reading records does not need them, so empty modules stand in for them. That makes its start faster
and smaller, never slower.
"""

import shutil
import sys
from types import ModuleType
from typing import Any

import numpy as np
from peers.work import Epoch, Work
from torch import Tensor, from_numpy


def _stand_in() -> None:
    """Register empty modules in place of what the package needs for its examples."""
    for name in ("streaming.text", "streaming.vision", "streaming.multimodal"):
        sys.modules[name] = ModuleType(name)
    for name, kind in (
        ("feature_extraction_utils", "BatchFeature"),
        ("tokenization_utils_base", "BatchEncoding"),
    ):
        module = ModuleType(f"transformers.{name}")
        setattr(module, kind, type(kind, (), {}))
        sys.modules[module.__name__] = module
    sys.modules["transformers"] = ModuleType("transformers")


_stand_in()
from peers.pixels import decoded, random_crop  # noqa: E402
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset  # noqa: E402


class Images(StreamingDataset):
    """JPEGs of A and B, decoded and cropped."""

    antialias = True

    def __getitem__(self, at: Any) -> tuple[Tensor, int]:
        item = super().__getitem__(at)
        return random_crop(decoded(item["image"]), self.antialias), item["number"]


class Planes(StreamingDataset):
    """Raw pixels of D, stored as planes."""

    def __getitem__(self, at: Any) -> tuple[Tensor, int]:
        item = super().__getitem__(at)
        return from_numpy(item["image"]), item["number"]


def jpeg(work: Work) -> Epoch:
    dataset = Images(local=work.path("mds"), shuffle=True, batch_size=work.batch_size)
    dataset.antialias = work.antialias
    return _epochs(dataset, work)


def small(work: Work) -> Epoch:
    return _epochs(Planes(local=work.path("mds"), shuffle=True, batch_size=work.batch_size), work)


def _epochs(dataset: StreamingDataset, work: Work) -> Epoch:
    loader = StreamingDataLoader(
        dataset, batch_size=work.batch_size, num_workers=work.num_workers, persistent_workers=True
    )
    return lambda _: iter(loader)


def make_jpeg(work: Work) -> None:
    shutil.rmtree(work.path("mds"), ignore_errors=True)
    with MDSWriter(out=work.path("mds"), columns={"image": "bytes", "number": "int"}) as writer:
        for number, path in enumerate(work.files()):
            with open(path, "rb") as file:
                writer.write({"image": file.read(), "number": number})


def make_small(work: Work) -> None:
    shutil.rmtree(work.path("mds"), ignore_errors=True)
    with MDSWriter(
        out=work.path("mds"), columns={"image": "ndarray:uint8:3,32,32", "number": "int"}
    ) as writer:
        for number, image in enumerate(np.load(work.path("raw.npy")).transpose(0, 3, 1, 2)):
            writer.write({"image": np.ascontiguousarray(image), "number": number})
