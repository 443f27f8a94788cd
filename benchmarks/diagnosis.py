"""Six deliberately slow set-ups, and whether 'paceline diagnose apply=true' names what was planted and keeps its predictions.

    python benchmarks/diagnosis.py [--only NAME ...] [--seconds 30] [--folder DIR]

All data is made here: pictures with a photograph's spectrum (noise of many scales), as JPEGs and as stores. Each set-up is diagnosed by the
real command, which also runs its best advice beside the present settings, in turn, four times each. Where data is fine the gain to
be predicted is that of data that costs nothing: one batch for ever beside whole steps, in turn. Prints a table, and writes every
diagnosis as JSON beside the data. This module is also the "user's package" of two of the set-ups.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from torch import Tensor, nn

from framework.contracts.data import SourceContext
from framework.contracts.records import Field, Manifest, Records
from framework.data.source import StoreSource
from framework.store.folder_store import FolderStore
from framework.store.hdf5_store import HDF5Writer

CLASSES = ("near", "far")
MODEL = [
    *(
        "model._target_=diagnosis.Small",
        "model.in_channels=3",
        "model.num_classes=2",
        "model.width=8",
        "allow_targets=[diagnosis]",
    ),
    *("optim.lr=0.001", "data.val=null", "report_every=50"),
]


# ------------------------------------------------------------------------------------------------ what the user brought along


class Small(nn.Module):
    """A classifier that takes next to no time."""

    def __init__(self, in_channels: int, num_classes: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.AvgPool2d(4),
            nn.Conv2d(in_channels, width, 4, 4),
            nn.ReLU(),
            nn.Flatten(),
            nn.LazyLinear(num_classes),
        )
        self.layers(torch.zeros(1, in_channels, 64, 64))

    def forward(self, image: Tensor) -> Tensor:
        return self.layers(image)


class PillowStore:
    """A folder of images, decoded and scaled by Pillow as it is read: what many a Dataset's __getitem__ does."""

    def __init__(self, path: str, size: int) -> None:
        self.files, self.size = FolderStore(path), size
        fields = {"image": Field("uint8", (3, size, size)), "label": Field("int64", ())}
        self.manifest = Manifest(self.files.manifest.num_records, fields, CLASSES, source=path)

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        images = np.stack([self._image(index) for index in indices.tolist()])
        return {"image": torch.from_numpy(images), "label": self.files.labels[indices]}

    def _image(self, index: int) -> np.ndarray:
        from PIL import Image

        with Image.open(self.files.name(index)) as image:
            scaled = image.convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR)
        return np.ascontiguousarray(np.asarray(scaled).transpose(2, 0, 1))

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        return []

    def key(self, index: int) -> str:
        return self.files.key(index)

    def name(self, index: int) -> str:
        return self.files.name(index)

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass


def pillow_source(path: str, size: int, *, context: SourceContext) -> StoreSource:
    return StoreSource(PillowStore(path, size), context)


def vignette(images: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Darker towards the corners, row by row in Python: some milliseconds a record, all under Python's lock."""
    strength = rng.uniform(0.2, 0.6)
    found: dict[str, np.ndarray] = {}
    for name, image in images.items():
        height, width = image.shape[:2]
        rows = image.tolist()
        for y in range(height):
            for x in range(width):
                far = ((2 * y / height - 1) ** 2 + (2 * x / width - 1) ** 2) / 2
                rows[y][x] = [int(value * (1 - strength * far)) for value in rows[y][x]]
        found[name] = np.asarray(rows, np.uint8)
    return found


# --------------------------------------------------------------------------------------------------------------------- data


def photograph(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """uint8 [height, width, 3] with the falling spectrum of a photograph: noise of every scale, the coarser the stronger."""
    image = np.full((height, width, 3), 128, np.float32)
    cells = 4
    while cells < max(height, width):
        grid = rng.normal(
            0, 1, (max(1, cells * height // max(height, width)) + 1, cells + 1, 3)
        ).astype(np.float32)
        image += (
            90 * cells**-0.5 * cv2.resize(grid, (width, height), interpolation=cv2.INTER_LINEAR)
        )
        cells *= 3
    return np.clip(image, 0, 255).astype(np.uint8)


def write_folder(path: Path, count: int, height: int, width: int) -> str:
    """JPEGs of quality 90, half of them in each class."""
    rng = np.random.default_rng(0)
    if not path.exists():
        for number in range(count):
            folder = path / CLASSES[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            jpeg = cv2.imencode(
                ".jpg", photograph(rng, height, width), [cv2.IMWRITE_JPEG_QUALITY, 90]
            )[1]
            (folder / f"{number:05d}.jpg").write_bytes(jpeg.tobytes())
    return str(path)


def write_raw(
    path: Path,
    count: int,
    size: int,
    chunk_records: int | None = None,
    compression: str | None = None,
) -> str:
    """Raw records uint8 [3, size, size]."""
    if path.exists():
        return str(path)
    rng = np.random.default_rng(0)
    fields = {"image": Field("uint8", (3, size, size)), "label": Field("int64", ())}
    writer = HDF5Writer(str(path), chunk_records, compression, fields=fields, num_records=count)
    pixels = np.stack([photograph(rng, size, size).transpose(2, 0, 1) for _ in range(count)])
    writer.write(
        {"image": pixels, "label": np.arange(count) % 2}, [str(number) for number in range(count)]
    )
    writer.close(Manifest(count, fields, CLASSES, source="made"))
    return str(path)


# ------------------------------------------------------------------------------------------------------------------ set-ups


class SetUp(NamedTuple):
    """``named``: the rules that name what was planted."""

    planted: str
    words: list[str]
    named: tuple[str, ...]


def set_ups(folder: Path) -> dict[str, SetUp]:
    photos = write_folder(folder / "photos", 640, 320, 400)
    huge = write_folder(folder / "huge", 64, 3000, 4000)
    raw = write_raw(folder / "raw.h5", 2048, 64)
    chunked = write_raw(folder / "chunked.h5", 2048, 64, 256, "gzip")
    blocks = write_raw(folder / "blocks.h5", 4096, 64, 32, "gzip")
    of_64 = ["batch_size=64"]
    resize = ["transform=resize", "transform.size=[64,64]"]
    slow = ["transform=function", "transform.function._target_=diagnosis.vignette"]
    pillow = [
        "data.source._target_=diagnosis.pillow_source",
        "+data.source.size=64",
        f"data.train={photos}",
    ]
    return {
        "pillow": SetUp(
            "Pillow decode with no workers",
            [*MODEL, *of_64, "data=folder", *pillow, "workers.num=0", "loader=plain"],
            ("raise_workers", "processes"),
        ),
        "huge": SetUp(
            "huge JPEGs read whole",
            [*MODEL, "batch_size=16", "data=folder", f"data.train={huge}", *resize],
            ("repack_smaller",),
        ),
        "chunked": SetUp(
            "chunk-compressed HDF5 read at random",
            [*MODEL, *of_64, "data=hdf5", f"data.train={chunked}"],
            ("repack_contiguous", "order_block"),
        ),
        "python": SetUp(
            "a slow Python transform",
            [*MODEL, *of_64, "data=hdf5", f"data.train={raw}", "limit=1024", *slow],
            ("processes", "augment_on_device"),
        ),
        "model": SetUp(
            "an over-large model, where data is fine",
            [
                "model=resnet18",
                "model.stem=small",
                "model.num_classes=2",
                "batch_size=8",
                "data=hdf5",
                f"data.train={raw}",
                "data.val=null",
            ],
            ("data_is_fine",),
        ),
        "workers": SetUp(
            "too many workers on two cores",
            [
                *(*MODEL, *of_64, "data=hdf5", f"data.train={blocks}"),
                # each process decodes every chunk of a window for itself: the more there are, the more often
                *(
                    "order=block",
                    "order.block_records=32",
                    "order.window_blocks=16",
                    "workers.kind=process",
                    "workers.num=16",
                ),
            ],
            ("lower_workers", "no_workers"),
        ),
    }


# ------------------------------------------------------------------------------------------------------------------ running


class Result(NamedTuple):
    set_up: SetUp
    verdict: str
    predicted: float
    measured: float
    spread: float
    seconds: float

    @property
    def named(self) -> bool:
        return self.verdict in self.set_up.named

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was measured."""
        return self.predicted / self.measured - 1


def diagnosed(name: str, set_up: SetUp, folder: Path, seconds: float) -> Result:
    """By the command itself, as a user types it."""
    output = folder / f"{name}.json"
    here = str(Path(__file__).parent)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]),
    }
    own = ["apply=true", f"seconds={seconds:g}", f"output={output}"]
    start = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "framework", "diagnose", *set_up.words, *own],
        cwd=folder,
        env=environment,
        check=True,
    )
    seconds = time.monotonic() - start
    found = json.loads(output.read_text())
    first = found["cause"] or "none"
    if first == "data_is_fine":
        comparison = headroom(set_up.words)
        return Result(set_up, first, found["facts"]["headroom"], *comparison, found["seconds"])
    if found["applied"] is None:
        return Result(set_up, first, float("nan"), float("nan"), float("nan"), found["seconds"])
    applied = found["applied"]
    return Result(
        set_up,
        first,
        applied["verdict"]["gain"],
        applied["comparison"]["gain"],
        applied["comparison"]["spread"],
        found["seconds"],
    )


def headroom(words: list[str], pairs: int = 4) -> tuple[float, float]:
    """(gain, spread) of one batch for ever beside whole steps."""
    from framework.cli.allowed import Grant
    from framework.cli.compose_config import composed
    from framework.commands.diagnose.measure_parts import Setting
    from framework.commands.paired_test import Pairs

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    setting = Setting(*composed([*words, "verify=off"], Grant(typed=True, exported="")))
    rates: dict[str, list[float]] = {"train": [], "compute": []}
    for number in range(pairs):
        for part in ("train", "compute") if number % 2 else ("compute", "train"):
            probe = setting.probe()
            rates[part].append(getattr(probe, part)(3.0).records_per_s)
            probe.close()
    comparison = Pairs(tuple(rates["train"]), tuple(rates["compute"]))
    return comparison.gain, comparison.spread


def table(results: list[Result]) -> str:
    lines = [
        "| planted | cause named | right | predicted | measured | prediction off by | took |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {r.set_up.planted} | {r.verdict} | {'yes' if r.named else 'NO'} | {r.predicted:.2f} | {r.measured:.2f} ± {r.spread:.2f} "
        f"| {100 * r.error:+.0f} % | {r.seconds:.0f} s |"
        for r in results
    ]
    good = sum(r.named for r in results), sum(abs(r.error) <= 0.2 for r in results)
    lines.append(
        f"\nnamed {good[0]} of {len(results)}; predicted within 20 %: {good[1]} of {len(results)}"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", help="names of set-ups")
    parser.add_argument("--seconds", type=float, default=30.0, help="as in paceline diagnose")
    parser.add_argument(
        "--folder",
        type=Path,
        help="where data and diagnoses are kept; otherwise they are removed at the end",
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-diagnosis-") as temporary:
        folder = (asked.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        results: list[Result] = []
        for name, set_up in set_ups(folder).items():
            if asked.only and name not in asked.only:
                continue
            print(f"\n===== {name}: {set_up.planted}", flush=True)
            results.append(diagnosed(name, set_up, folder, asked.seconds))
    print("\n" + table(results))


if __name__ == "__main__":
    main()
