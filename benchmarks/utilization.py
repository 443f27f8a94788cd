"""Measure the utilization of an accelerator (AU) while images are read, beside other loaders.

    python benchmarks/gpu.py --only utilization [--images FOLDER_OR_TAR] [--nets resnet50,resnet18]
                             [--seconds 8] [--minutes 7]
    python benchmarks/gpu.py --only utilization --device cpu --small --seconds 0.05   # a trial

AU is the rate of training over the rate of the same step on a batch that stays on the device. All
rows train the same net from the same photographs: random windows scaled to 224 pixels, mirrored at
random and normalized, bf16, channels_last, SGD, batches of 256. Beside Paceline's choices stand the
textbook's DataLoader, timm's loader, Lightning and a plain DALI pipeline, if they are installed.

The first epoch does not count, nor does a part of an epoch: the pauses between epochs belong to a
rate. Every row also has the cores that its processes kept busy, the 99th percentile of the host's
wait for a batch, and the seconds from building the row to the end of its first step.
"""

import gc
import io
import os
import shutil
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import torch
from peers.torch_loader import Pillow
from peers.work import FLIP, RATIO, SCALE
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tune import make_images

from framework.config.training_parts import training_parts
from framework.contracts.data import MicroBatches
from framework.contracts.loader import LoaderStats
from framework.errors import PacelineError
from framework.main import run
from framework.measure.host import num_cores
from framework.measure.usage import MachineWatch
from framework.model.resnet18 import ResNet18
from framework.train.trainer import Trainer

if TYPE_CHECKING:
    from gpu import Bench

HEAD = ("from", "images/s", "AU", "cores", "p99 of wait, ms", "first step, s")
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
CLASSES = 1000
SIZE = 224
NUM_IMAGES = 8184  # of an epoch: fewer photographs are repeated by hard links
SMALLER = 256  # pixels of the shorter side
DALI_THREADS = 8  # of the plain pipeline; one per core is slower, see docs/measured.md


class Bottleneck(nn.Module):
    """A block of ResNet-50 with its stride in the 3x3 convolution, as in torchvision."""

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            *convolved(in_channels, width, 1, 1),
            nn.ReLU(inplace=True),
            *convolved(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *convolved(width, 4 * width, 1, 1),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != 4 * width:
            self.shortcut = nn.Sequential(*convolved(in_channels, 4 * width, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.inside(x) + self.shortcut(x))


def convolved(in_channels: int, out_channels: int, side: int, stride: int) -> list[nn.Module]:
    conv = nn.Conv2d(in_channels, out_channels, side, stride, padding=side // 2, bias=False)
    return [conv, nn.BatchNorm2d(out_channels)]


def make_net(name: str) -> Any:
    """Return ``resnet50``, ``resnet18``, or ``tiny`` for a trial on a CPU."""
    if name == "resnet18":
        return ResNet18(3, CLASSES, "large")
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    if name == "tiny":
        return nn.Sequential(*convolved(3, 8, 17, 16), *head, nn.Linear(8, CLASSES))
    stem = [*convolved(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
    blocks: list[nn.Module] = []
    channels = 64
    for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(depth):
            blocks.append(Bottleneck(channels, width, 1 if number else stride))
            channels = 4 * width
    return nn.Sequential(*stem, *blocks, *head, nn.Linear(channels, CLASSES))


class Meter:
    """Measures a training loop: whole epochs after the first, for at least ``bench.seconds``."""

    def __init__(self, bench: "Bench", work: "Images") -> None:
        self.bench = bench
        self.work = work
        self.result: dict[str, float] = {}
        self.waits_s: list[float] = []
        self.num_steps = 0
        self.start = time.perf_counter()
        self.begin = 0.0
        self.watch = MachineWatch()

    def timed(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield an epoch's batches, and note how long each was waited for, the first included."""
        before = time.perf_counter()
        for batch in batches:
            self.waits_s.append(time.perf_counter() - before)
            yield batch
            before = time.perf_counter()

    def is_done(self) -> bool:
        """Count a step. Return whether enough epochs have ended."""
        self.num_steps += 1
        if self.num_steps == 1:
            self.bench.wait()
            self.result["first_step_s"] = time.perf_counter() - self.start
        if self.num_steps % self.work.num_steps:
            return False
        self.bench.wait()
        now = time.perf_counter()
        if not self.begin:
            self.begin = now
            self.watch.lap()
            self.waits_s.clear()
            return False
        if now - self.begin < self.bench.seconds:
            return False
        num_images = (self.num_steps - self.work.num_steps) * self.work.batch_size
        self.result["images_per_s"] = num_images / (now - self.begin)
        self.result["cores"] = self.watch.lap().own_cores
        self.result["p99_wait_ms"] = 1e3 * float(np.quantile(self.waits_s, 0.99))
        return True


class Images:
    """The photographs in every form that a row reads, in a folder."""

    def __init__(self, bench: "Bench", given: str | None) -> None:
        self.batch_size = 8 if bench.small else 256
        self.num_images = 24 if bench.small else NUM_IMAGES
        self.num_steps = self.num_images // self.batch_size
        self.photos = bench.work / "photos"
        self.smaller = bench.work / "photos256"
        source = unpacked(given, bench.work) if given else bench.work / "made"
        if not given:
            make_images(source, 12 if bench.small else 372, 500, 0)
        self._link(sorted(filter(is_jpeg, source.rglob("*"))), self.photos)
        self._scale(bench.work / "scaled")
        self.jpeg = packed(self.photos, bench.work / "jpeg.h5")
        self.jpeg256 = packed(self.smaller, bench.work / "jpeg256.h5")
        pixels = ("pack.encode=raw", f"pack.size=[{SMALLER},{SMALLER}]")
        self.raw256 = packed(self.photos, bench.work / "raw256.h5", *pixels)

    def _link(self, files: list[Path], folder: Path) -> None:
        """Copy files into ten folders, and link them until there are enough for an epoch."""
        places: list[Path] = []
        for number in range(self.num_images):
            place = folder / str(number % 10) / f"{number:05}.jpg"
            place.parent.mkdir(parents=True, exist_ok=True)
            if number < len(files):
                shutil.copyfile(files[number], place)
            else:
                os.link(places[number - len(files)], place)
            places.append(place)

    def _scale(self, folder: Path) -> None:
        """Write each different photograph with a shorter side of 256 pixels."""
        folder.mkdir()
        different = {path.stat().st_ino: path for path in sorted(self.photos.rglob("*.jpg"))}
        for number, path in enumerate(different.values()):
            image = cv2.imread(str(path))
            assert image is not None, path
            size = tuple(
                round(side * SMALLER / min(image.shape[:2])) for side in image.shape[1::-1]
            )
            image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
            cv2.imwrite(str(folder / f"{number:05}.jpg"), image)
        self._link(sorted(folder.iterdir()), self.smaller)


def is_jpeg(path: Path) -> bool:
    return path.suffix.lower() in (".jpg", ".jpeg")


def unpacked(given: str, work: Path) -> Path:
    """Return the folder ``given``, or that into which the tar ``given`` was unpacked."""
    if Path(given).is_dir():
        return Path(given)
    with tarfile.open(given) as archive:
        archive.extractall(work / "given", filter="data")
    return work / "given"


def packed(folder: Path, store: Path, *words: str) -> Path:
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = run(["pack", f"input.path={folder}", f"output.path={store}", *words])
    if code:
        raise RuntimeError(said.getvalue()[-500:])
    return store


def our_words(bench: "Bench", work: Images, net: str) -> dict[str, list[str]]:
    """Return the words of each of our rows, the most wanted first."""
    common = [
        "prepare=null",
        "data.val=null",
        "model=null",
        "+model._target_=utilization.make_net",
        f"+model.name={net}",
        "allow_targets=[utilization]",
        "optim=sgd",
        "optim.lr=0.01",
        "schedule=constant",
        "transform=random_resized_crop",
        "augment=normalize",
        f"augment.mean={list(MEAN)}".replace(" ", ""),
        f"augment.std={list(STD)}".replace(" ", ""),
        "precision=amp",
        "channels_last=true",
        f"batch_size={work.batch_size}",
        "last=drop",
        "loader=stream",
        "verify=off",
    ]
    processes = ["workers.kind=process", f"workers.num={max(1, num_cores() - 2)}"]
    rows = {
        "raw store 256": ["data=hdf5", f"data.train={work.raw256}"],
        "JPEG store, full size": ["data=hdf5", f"data.train={work.jpeg}"],
        "JPEG store, 256 pixels": ["data=hdf5", f"data.train={work.jpeg256}"],
        "data=dali, JPEG store, full size": ["data=dali", f"data.train={work.jpeg}"],
        "JPEGs in a folder, full size": ["data=folder", f"data.train={work.photos}"],
        "JPEG store, full size, processes": ["data=hdf5", f"data.train={work.jpeg}", *processes],
    }
    return {name: [*common, *words] for name, words in rows.items()}


class TimedLoader:
    """Our loader, whose batches a `Meter` times."""

    def __init__(self, loader: Any, meter: Meter) -> None:
        self._loader = loader
        self._meter = meter
        self.num_steps = loader.num_steps
        self.identity = loader.identity
        self.notes = loader.notes
        self.expect = loader.expect

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        with closing(self._loader.epoch(epoch, start)) as batches:
            yield from self._meter.timed(batches)

    def stats(self) -> LoaderStats:
        return self._loader.stats()

    def close(self) -> None:
        self._loader.close()


def ours(meter: Meter, words: list[str]) -> None:
    """Train with our Trainer until the meter has enough."""
    with closing(meter.bench.probe(*words)) as probe:
        parts = training_parts(probe.assembly, stop=meter.is_done)
        Trainer(replace(parts, train=TimedLoader(probe.assembly.train, meter), val=None)).fit()


class ByHand:
    """A net and its step, as a plain script writes them."""

    def __init__(self, bench: "Bench", net: str) -> None:
        self.device = bench.device
        self.model = make_net(net).to(self.device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), 0.01, momentum=0.9, weight_decay=5e-4, nesterov=True
        )

    def step(self, images: Tensor, labels: Tensor) -> None:
        layout = torch.channels_last
        images = images.to(self.device, non_blocking=True, memory_format=layout)
        labels = labels.to(self.device, non_blocking=True)
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = nn.functional.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def train(self, meter: Meter, epochs: Callable[[], Iterable[tuple[Tensor, Tensor]]]) -> None:
        """Train epoch after epoch until the meter has enough."""
        while True:
            for images, labels in meter.timed(epochs()):
                self.step(images, labels)
                if meter.is_done():
                    return

    def rate(self, bench: "Bench", batch_size: int) -> float:
        """Return images per second on a batch that stays on the device."""
        images = torch.randn(batch_size, 3, SIZE, SIZE, device=bench.device)
        images = images.to(memory_format=torch.channels_last)
        labels = torch.randint(10, (batch_size,), device=bench.device)
        seconds = bench.timed(lambda: self.step(images, labels), 3 if bench.small else 60)
        return batch_size / seconds


class Textbook(Pillow):
    """A Dataset as tutorials write it: Pillow, then float32 and normalized, image by image."""

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        image, _ = super().__getitem__(number)
        mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
        return (image.float().div_(255) - mean) / std, number % 10


def textbook_loader(bench: "Bench", folder: Path, batch_size: int) -> DataLoader[Any]:
    files = [str(path) for path in sorted(folder.glob("*/*"))]
    return DataLoader(
        Textbook(files),
        batch_size,
        shuffle=True,
        num_workers=1 if bench.small else num_cores(),
        persistent_workers=True,
        pin_memory=bench.device.type == "cuda",
        drop_last=True,
    )


def textbook(meter: Meter, work: Images, net: str) -> None:
    loader = textbook_loader(meter.bench, work.photos, work.batch_size)
    ByHand(meter.bench, net).train(meter, lambda: loader)


def timm(meter: Meter, work: Images, net: str, folder: Path) -> None:
    """Train with timm's loader, which normalizes on a GPU in a side stream."""
    data = import_module("timm.data")
    on_gpu = meter.bench.device.type == "cuda"
    loader = data.create_loader(
        data.create_dataset("", root=str(folder)),
        input_size=(3, SIZE, SIZE),
        batch_size=work.batch_size,
        is_training=True,
        no_aug=False,
        scale=SCALE,
        ratio=RATIO,
        hflip=FLIP,
        color_jitter=0.0,
        interpolation="bilinear",
        mean=MEAN,
        std=STD,
        num_workers=1 if meter.bench.small else num_cores(),
        use_prefetcher=on_gpu,
        pin_memory=on_gpu,
        device=meter.bench.device,
    )
    ByHand(meter.bench, net).train(meter, lambda: loader)


def lightning(meter: Meter, work: Images, net: str) -> None:
    """Train with Lightning's Trainer and the textbook's DataLoader."""
    pl: Any = import_module("lightning.pytorch")

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_net(net).to(memory_format=torch.channels_last)

        def training_step(self, batch: Any, _: int) -> Tensor:
            images = batch[0].contiguous(memory_format=torch.channels_last)
            return nn.functional.cross_entropy(self.model(images), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(
                self.parameters(), 0.01, momentum=0.9, weight_decay=5e-4, nesterov=True
            )

    class Stop(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop = meter.is_done()

    class Timed:
        """The epochs of a loader, whose batches the meter times."""

        def __init__(self) -> None:
            self.loader = textbook_loader(meter.bench, work.photos, work.batch_size)

        def __len__(self) -> int:
            return len(self.loader)

        def __iter__(self) -> Iterator[Any]:
            return meter.timed(self.loader)

    trainer = pl.Trainer(
        accelerator="gpu" if meter.bench.device.type == "cuda" else "cpu",
        devices=1,
        precision="bf16-mixed",
        max_epochs=-1,
        min_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Stop()],
    )
    trainer.fit(Module(), Timed())


def plain_dali(meter: Meter, work: Images, net: str) -> None:
    """Train from a pipeline of DALI's own reader and decoder; labels are those of the folders."""
    dali: Any = import_module("nvidia.dali")
    torch_plugin: Any = import_module("nvidia.dali.plugin.pytorch")
    policy = import_module("nvidia.dali.plugin.base_iterator").LastBatchPolicy.DROP
    fn, types = dali.fn, dali.types
    on_gpu = meter.bench.device.type == "cuda"

    @dali.pipeline_def(
        batch_size=work.batch_size,
        num_threads=DALI_THREADS if on_gpu else 1,
        device_id=0 if on_gpu else None,
        seed=1,
    )
    def pipeline() -> tuple[Any, Any]:
        data, label = fn.readers.file(
            file_root=str(work.photos), shuffle_after_epoch=True, name="reader"
        )
        image = fn.decoders.image_random_crop(
            data,
            device="mixed" if on_gpu else "cpu",
            output_type=types.RGB,
            random_area=SCALE,
            random_aspect_ratio=RATIO,
        )
        image = fn.resize(image, size=(SIZE, SIZE), interp_type=types.INTERP_LINEAR)
        image = fn.crop_mirror_normalize(
            image,
            mirror=fn.random.coin_flip(probability=FLIP),
            dtype=types.FLOAT,
            output_layout="HWC",
            mean=[255 * value for value in MEAN],
            std=[255 * value for value in STD],
        )
        return image, label

    iterator = torch_plugin.DALIGenericIterator(
        [pipeline()],
        ["image", "label"],
        reader_name="reader",
        last_batch_policy=policy,
        auto_reset=True,
    )

    def epoch() -> Iterator[tuple[Tensor, Tensor]]:
        for (batch,) in iterator:
            yield batch["image"].permute(0, 3, 1, 2), batch["label"].squeeze(1).long()

    ByHand(meter.bench, net).train(meter, epoch)


def peers(work: Images, net: str) -> dict[str, Callable[[Meter], None]]:
    return {
        "timm, full size": lambda meter: timm(meter, work, net, work.photos),
        "textbook DataLoader, full size": lambda meter: textbook(meter, work, net),
        "plain DALI, full size": lambda meter: plain_dali(meter, work, net),
        "timm, 256 pixels": lambda meter: timm(meter, work, net, work.smaller),
        "Lightning, textbook DataLoader": lambda meter: lightning(meter, work, net),
    }


def utilization(bench: "Bench") -> None:
    """Measure every row of every net. A row that fails or is not installed says why."""
    work = Images(bench, bench.images)
    for net in ["tiny"] if bench.small else bench.nets:
        measure_net(bench, work, net, bench.result.setdefault(net, {}))


def measure_net(bench: "Bench", work: Images, net: str, result: dict[str, Any]) -> None:
    table = bench.table(f"Utilization: {net}, batches of {work.batch_size}", *HEAD)
    words = our_words(bench, work, net)
    first = next(iter(words.values()))
    alone = {
        "Paceline": bench.rate(lambda probe: probe.compute(bench.seconds), *first).records_per_s,
        "by hand": ByHand(bench, net).rate(bench, work.batch_size),
    }
    for name, rate in alone.items():
        result[f"the step alone, {name}"] = {"images_per_s": rate}
        table.row(f"the step alone, {name}", f"{rate:,.0f}", "1", "", "", "")
    rows: dict[str, tuple[str, Callable[[Meter], None]]] = {}
    for name in words:
        rows[name] = ("Paceline", lambda meter, name=name: ours(meter, words[name]))
    for name, peer in peers(work, net).items():
        rows[name] = ("by hand", peer)
    for name, (step, train) in rows.items():
        meter = Meter(bench, work)
        try:
            train(meter)
        except (ImportError, PacelineError) as error:
            table.row(name, "not here", str(error)[:80], "", "", "")
            continue
        except Exception as error:  # the other rows are still measured
            result[name] = {"failed": repr(error)}
            table.row(name, "failed", str(error)[:80], "", "", "")
            continue
        finally:
            gc.collect()  # worker processes and pipelines end before the next row
        figures = result[name] = {**meter.result}
        figures["utilization"] = figures["images_per_s"] / alone[step]
        table.row(
            name,
            f"{figures['images_per_s']:,.0f}",
            f"{figures['utilization']:.3f}",
            f"{figures['cores']:.1f}",
            f"{figures['p99_wait_ms']:.1f}",
            f"{figures['first_step_s']:.1f}",
        )
