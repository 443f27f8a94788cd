"""What the user of a planted set-up brought along: a model, a store and a transform."""

from collections.abc import Callable, Collection, Mapping

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from framework.contracts.batch import Batch
from framework.contracts.data import SourceContext
from framework.contracts.records import Field, Manifest, Records, RecordStore
from framework.contracts.training import Outcome
from framework.data.source import StoreSource
from framework.store.folder_store import FolderStore
from planted.pictures import CLASSES

# The words of a model that takes next to no time.
SMALL = (
    "model._target_=planted.users.Small",
    "model.in_channels=3",
    "model.num_classes=2",
    "model.width=8",
    "allow_targets=[planted]",
    "optim.lr=0.001",
    "data.val=null",
    "report_every=50",
)


class Small(nn.Module):
    """A classifier that takes next to no time."""

    def __init__(self, in_channels: int, num_classes: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(16),
            nn.Conv2d(in_channels, width, 4, 4),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(16 * width, num_classes),
        )

    def forward(self, image: Tensor) -> Tensor:
        return self.layers(image)


class PillowStore(RecordStore):
    """A folder of images, decoded and scaled by Pillow as it is read.

    Many a Dataset's ``__getitem__`` does so.
    """

    def __init__(self, path: str, size: int) -> None:
        self.files = FolderStore(path)
        self.size = size
        fields = {"image": Field("uint8", (3, size, size)), "label": Field("int64", ())}
        self._manifest = Manifest(self.files.manifest.num_records, fields, CLASSES, source=path)

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        images = np.stack([self._image(index) for index in indices.tolist()])
        return {"image": torch.from_numpy(images), "label": self.files.labels[indices]}

    def _image(self, index: int) -> np.ndarray:
        with Image.open(self.files.name(index)) as image:
            scaled = image.convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR)
        return np.ascontiguousarray(np.asarray(scaled).transpose(2, 0, 1))

    def key(self, index: int) -> str:
        return self.files.key(index)

    def name(self, index: int) -> str:
        return self.files.name(index)


class LockedStore(RecordStore):
    """A folder of images whose pixels pass through a Python list, so that reading is locked."""

    def __init__(self, path: str, size: int) -> None:
        self.pillow = PillowStore(path, size)
        self._manifest = self.pillow.manifest

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        records = self.pillow.read(indices, views)
        pixels = records["image"]
        values = [min(255, value) for value in pixels.flatten().tolist()]
        return {**records, "image": torch.tensor(values, dtype=torch.uint8).view(pixels.shape)}

    def key(self, index: int) -> str:
        return self.pillow.key(index)

    def name(self, index: int) -> str:
        return self.pillow.name(index)


def locked_source(
    path: str, size: int, follow_links: str | None = None, *, context: SourceContext
) -> StoreSource:
    return StoreSource(LockedStore(path, size), context)


def pillow_source(
    path: str, size: int, follow_links: str | None = None, *, context: SourceContext
) -> StoreSource:
    return StoreSource(PillowStore(path, size), context)


def vignette(images: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Darken the corners row by row in Python: milliseconds a record, under Python's lock."""
    strength = rng.uniform(0.2, 0.6)
    results: dict[str, np.ndarray] = {}
    for name, image in images.items():
        height, width = image.shape[:2]
        rows = image.tolist()
        for y in range(height):
            for x in range(width):
                far = ((2 * y / height - 1) ** 2 + (2 * x / width - 1) ** 2) / 2
                rows[y][x] = [int(value * (1 - strength * far)) for value in rows[y][x]]
        results[name] = np.asarray(rows, np.uint8)
    return results


def fast_vignette(images: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Darken the corners with operations on whole images."""
    strength = rng.uniform(0.2, 0.6)
    results: dict[str, np.ndarray] = {}
    for name, image in images.items():
        height, width = image.shape[:2]
        y = (2 * np.arange(height, dtype=np.float32) / height - 1)[:, None]
        x = 2 * np.arange(width, dtype=np.float32) / width - 1
        shade = 1 - strength * (y**2 + x**2) / 2
        results[name] = (image * shade[..., None]).astype(np.uint8)
    return results


class ReadsLoss:
    """Cross-entropy that reads values of the logits in every step, one by one."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, model: Callable[..., Tensor], batch: Batch) -> Outcome:
        logits = model(batch["image"])
        total = 0.0
        flat = logits.detach().flatten()
        for number in range(self.count):
            total += flat[number % len(flat)].item()
        loss = nn.functional.cross_entropy(logits, batch["label"])
        return Outcome(loss, {"total": torch.tensor(total)}, len(batch["label"]))

    def better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        return new["loss"] < old["loss"]


class LoopingModel(nn.Module):
    """A classifier that first walks over values in Python."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.small = Small(3, 2, 8)
        self.count = count

    def forward(self, image: Tensor) -> Tensor:
        weights = image.flatten()[: self.count].tolist()
        mean = 0.0
        for _ in range(3):
            for weight in weights:
                mean = 0.999 * mean + 0.001 * weight
        return self.small(image) + 0 * mean


class Deep(nn.Module):
    """A classifier of many layers on few numbers, whose kernels are tiny."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(4)
        blocks = [nn.Sequential(nn.Linear(48, 48), nn.LayerNorm(48)) for _ in range(depth)]
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(48, 2)

    def forward(self, image: Tensor) -> Tensor:
        x = self.pool(image).flatten(1)
        for block in self.blocks:
            x = x + block(x).tanh()
        return self.head(x)


class OneByOne:
    """An augment that shifts the brightness of an image after the other, value by value."""

    num_draws = 0

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        image = batch["image"].float() / 255
        for number in range(len(image)):
            for row in range(self.rows):
                image[number, :, row] = image[number, :, row] * 0.9 + 0.05
        return {**batch, "image": image}
