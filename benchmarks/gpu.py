"""Measure on a GPU what the machine can do, whether numbers stay the same, what switches gain.

    python benchmarks/gpu.py [--seconds 3] [--minutes 8.5] [--only facts,same,...]
                             [--cifar10 FOLDER_OR_TAR] [--images FOLDER_OR_TAR] [--out DIR]
    python benchmarks/gpu.py --device cpu --small     # try the script; its figures mean nothing

Each part runs in its own process, because an error on a device may stay with the process. A row is
printed and stored in DIR/gpu.json as soon as it is known, so a part that fails or runs out of time
keeps its rows, and the others continue. All parts take more time than ``--minutes`` has: name some.

Rates are means of windows of ``--seconds`` in all, after a burn-in, with half the distance of their
quartiles. Beside each stands its ratio to a limit of the machine: bytes over the measured rate of
copies (over the bus, or in the device's memory), operations over the measured rate of products.
After each part its figures stand beside the goals of `gpu_goals.py`.

On a machine that cannot install packages, use a bundle of `gpu_bundle.py`.
"""

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, redirect_stderr, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
from gpu_goals import HEAD, judged  # noqa: E402
from overhead import READ_EVERY, OneBatch, hand_written, make_trainer, pair  # noqa: E402
from peers.speed_record import Images  # noqa: E402
from peers.speed_record import train as train_plainly  # noqa: E402
from tune import make_images  # noqa: E402
from utilization import utilization  # noqa: E402

from framework.augment.compose import Fused  # noqa: E402
from framework.augment.normalize import Normalize  # noqa: E402
from framework.cli.arguments import Grant  # noqa: E402
from framework.cli.hydra_app import composed  # noqa: E402
from framework.config.assemble import find_device  # noqa: E402
from framework.contracts.batch import Batch, move, pin  # noqa: E402
from framework.contracts.data import Augment, MicroBatch  # noqa: E402
from framework.contracts.loader import LoaderContext  # noqa: E402
from framework.errors import ResourceError  # noqa: E402
from framework.loader.plain import PlainLoader  # noqa: E402
from framework.loader.prefetch import Ahead, Occupancy, PrefetchLoader  # noqa: E402
from framework.loader.stream import StreamLoader  # noqa: E402
from framework.measure.clock import make_clock  # noqa: E402
from framework.measure.host import machine  # noqa: E402
from framework.order.draws import ON_DEVICE, draws, key_of, keyed_draws  # noqa: E402
from framework.system.memory import use  # noqa: E402
from framework.train.cuda_graph import CudaRecorder  # noqa: E402
from framework.trials.probe import Probe, Rate  # noqa: E402

TYPED = Grant(frozenset({"allow_targets"}), "")  # the words of this script
PHOTOS = [
    "data=synthetic",
    "data.val=null",
    "prepare=null",
    "schedule=constant",
    "model=resnet18",
    "model.num_classes=1000",
    "optim=sgd",
    "optim.lr=0.01",
    "augment=normalize",
    "augment.mean=[0.485,0.456,0.406]",
    "augment.std=[0.229,0.224,0.225]",
    "data.source.num_classes=1000",
]


RESULT = "result.json"  # of a part, in its working folder


class Floors(NamedTuple):
    """Measured limits of this machine.

    Attributes:
        copy: Bytes per second from pinned memory to the device.
        memory: Bytes per second read and written in the device's memory.
        products: Operations per second of matrix products, by type.
    """

    copy: float
    memory: float
    products: dict[str, float]


class Bench:
    """The state that all parts share: the device, the options and the result.

    With ``small``, sizes suit a CPU, and the figures mean nothing. A part puts its figures into
    ``result``. `keep` stores them.
    """

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.device = find_device(options.device)
        use(self.device, pinned=False)
        self.seconds = options.seconds
        self.small = options.small
        self.cifar10 = options.cifar10
        self.images = options.images
        self.nets = options.nets.split(",")
        self.work = work
        self.result: dict[str, Any] = {}
        self._floors: Floors | None = None

    def keep(self) -> None:
        """Store what is known so far: this process may be killed at any time."""
        write_json(self.work / RESULT, self.result)

    def table(self, title: str, *head: str) -> "Table":
        return Table(self, title, head)

    @property
    def floors(self) -> Floors:
        if self._floors is None:
            products = {name: self._product_rate(name) for name in ("fp32", "tf32", "bf16", "fp16")}
            self._floors = Floors(self._copy_rate(), self._memory_rate(), products)
        return self._floors

    def timed(self, work: Callable[[], object], repeats: int) -> float:
        """Return the mean seconds of ``repeats`` calls, after half as many to warm up."""
        for count in (max(1, repeats // 2), repeats):
            self.wait()
            start = time.perf_counter()
            for _ in range(count):
                work()
            self.wait()
        return (time.perf_counter() - start) / repeats

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _copy_rate(self) -> float:
        host = torch.empty((1 << 22) if self.small else (1 << 28), dtype=torch.uint8)
        host = host.pin_memory() if self.device.type == "cuda" else host
        there = torch.empty_like(host, device=self.device)
        # the bus may sleep at first
        times = [self.timed(lambda: there.copy_(host, non_blocking=True), 10) for _ in range(3)]
        return host.numel() / min(times)

    def _memory_rate(self) -> float:
        num_bytes = (1 << 22) if self.small else (1 << 30)
        source = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * num_bytes / self.timed(lambda: target.copy_(source), 10)

    def _product_rate(self, name: str) -> float:
        side = 256 if self.small else 8192
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name, torch.float32)
        matrix = torch.randn(side, side, device=self.device, dtype=kind)
        return 2 * side**3 / self.timed(lambda: matrix @ matrix, 10)

    def probe(self, *words: str) -> Probe:
        words = (*words, f"device={self.device.type}", "report_every=50")
        with redirect_stderr(io.StringIO()):  # notes about dropped keys, in the middle of a table
            config, allowed = composed([*words], TYPED)
        return Probe(config, allowed)

    def photos(self, batch_size: int = 256, side: int = 224) -> list[str]:
        """Return words for a ResNet-18 on generated images in memory."""
        batch_size, side = (8, 32) if self.small else (batch_size, side)
        num = batch_size * 1000  # long epochs: the first batch has nothing to overlap with
        return [
            *PHOTOS,
            f"data.source.image_shape=[3,{side},{side}]",
            f"batch_size={batch_size}",
            f"data.source.num_records={num}",
        ]

    def rate(self, measure: Callable[[Probe], Rate], *words: str) -> Rate:
        with closing(self.probe(*words)) as probe:
            return measure(probe)


class Table:
    """A table that prints each row, and stores the part's result, as soon as it is known."""

    def __init__(self, bench: Bench, title: str, head: Sequence[str]) -> None:
        self.bench = bench
        print_head(title, head)

    def row(self, *cells: str) -> None:
        print_row(cells)
        self.bench.keep()


def print_head(title: str, head: Sequence[str]) -> None:
    print(f"\n## {title}\n\n| {' | '.join(head)} |\n|{' --- |' * len(head)}", flush=True)


def print_row(cells: Sequence[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def write_json(path: Path, content: Any) -> None:
    """Write a file whole or not at all."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(json.dumps(content, indent=1), encoding="utf-8")
    unfinished.replace(path)


def paceline(*words: str, **environment: str) -> None:
    """Run ``paceline WORDS``.

    Raises:
        RuntimeError: The command failed.
    """
    command = [sys.executable, "-m", "framework", *words]
    env = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])


# --- parts


def facts(bench: Bench) -> None:
    """Print what the machine is, and measure its limits."""
    known = {**machine(), "torch": str(torch.__version__), "cuda": torch.version.cuda}
    bench.result.update(known)
    table = bench.table("Machine", "what", "value")
    for name, value in known.items():
        table.row(name, str(value))
    rates = {
        "GB/s from pinned memory": bench.floors.copy / 1e9,
        "GB/s in the device's memory": bench.floors.memory / 1e9,
    }
    for kind, rate in bench.floors.products.items():
        rates[f"TFLOP/s, products of {kind}"] = rate / 1e12
    bench.result.update(rates)
    for name, rate in rates.items():
        table.row(name, f"{rate:.1f}")


def tests(bench: Bench) -> None:
    """Run the tests marked gpu, one after the other."""
    words = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-ra"]
    print("\n## pytest -m gpu\n", flush=True)
    done = subprocess.run(words, check=False, cwd=Path(__file__).parents[1])
    if done.returncode:
        raise RuntimeError(f"pytest -m gpu ended with {done.returncode}")
    bench.result["rc"] = done.returncode


SAME = {
    "plain": ("loader=plain", "workers.num=2"),
    "plain again": ("loader=plain", "workers.num=2"),
    "prefetch": ("loader=prefetch", "workers.num=2"),
    "stream": ("loader=stream", "workers.num=2"),
    "stage=device": ("data.stage=device", "workers.num=0"),
    "stage=device, stream": ("loader=stream", "data.stage=device", "workers.num=0"),
}


def same(bench: Bench) -> None:
    """Check whether losses agree bit by bit among loaders, and with the data set on the device.

    ``plain`` runs twice, because kernels may not repeat their own results.

    Raises:
        RuntimeError: ``plain`` repeats its losses, and another loader has different ones.
    """
    table = bench.table("The same numbers", "loader", "losses", "those of plain, bit by bit")
    plain: list[str] = []
    for number, (name, words) in enumerate(SAME.items()):
        losses = digits_losses(bench, bench.work / f"same-{number}", words)
        plain = plain or losses
        bench.result[name] = losses == plain
        table.row(name, str(len(losses)), str(losses == plain))
    if bench.result["plain again"] and not all(bench.result.values()):
        others = ", ".join(name for name, agrees in bench.result.items() if not agrees)
        raise RuntimeError(f"not the same numbers: {others}")


def digits_losses(bench: Bench, run_dir: Path, words: Sequence[str]) -> list[str]:
    """Train 60 steps on the digits. Return every loss, exactly, as text."""
    paceline(
        "train",
        *words,
        f"device={bench.device.type}",
        "recipes=digits",
        f"dataset={bench.work / 'digits'}",
        "max_steps=60",
        "report_every=1",
        "augment=crop_flip",
        "augment.mean=[0.5]",
        "augment.std=[0.5]",
        "workers.kind=thread",
        "sink=[jsonl]",
        "deterministic=true",
        f"hydra.run.dir={run_dir}",
    )
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [float(line["loss"]).hex() for line in lines if line["split"] == "train"]


def loading(bench: Bench) -> None:
    """Compare loading raw images to the device with the bandwidth of the bus.

    First, the loaders copy the same pinned batch every time, without and with normalizing on the
    device. Then, they read and normalize batches of a store in memory, in random order.
    """
    # 30 batches: the first of an epoch has nothing to overlap with
    store = packed_pixels(bench, 32 if bench.small else 7680)
    photos = bench.photos()
    sets = {
        "none": [*unaugmented(photos), "augment=none"],
        "normalize": photos,
        "store": [*of_store(photos, store), "data=hdf5", "data.stage=ram"],
    }
    head = ("loader", "records/s", "spread", "of the pinned copy rate")
    table = bench.table("Loader to device, raw 224, batches of 256", *head)
    for name, words in sets.items():
        for loader in ("plain", "prefetch", "stream"):
            rate = bench.rate(lambda probe: probe.loader(bench.seconds), *words, f"loader={loader}")
            share = rate.records_per_s * record_bytes(bench) / bench.floors.copy
            bench.result[f"{loader}/{name}"] = share
            speed = f"{rate.records_per_s:,.0f}"
            table.row(f"{loader}, {name}", speed, f"{100 * rate.spread:.1f} %", f"{share:.3f}")


def packed_pixels(bench: Bench, count: int) -> Path:
    """Return a store of noise that needs no decoding."""
    side = 32 if bench.small else 224
    images = np.random.default_rng(0).integers(0, 256, (count, 3, side, side), np.uint8)
    arrays = bench.work / "pixels.npz"
    np.savez(arrays, image=images, label=np.arange(count) % 10)
    store = bench.work / "pixels.h5"
    paceline("pack", "input=arrays", f"input.path={arrays}", f"output.path={store}")
    arrays.unlink()
    return store


def packed_jpegs(bench: Bench, count: int, side: int) -> Path:
    """Return a store of JPEGs of smooth noise."""
    if bench.small:
        count = 32
        side = 32
    folder = bench.work / "jpegs"
    store = bench.work / "jpegs.h5"
    make_images(folder, count, side, 0)
    paceline("pack", f"input.path={folder}", f"output.path={store}")
    return store


def of_store(words: list[str], store: Path) -> list[str]:
    return [
        *(word for word in words if not word.startswith("data")),
        f"data.train={store}",
        "data.val=null",
    ]


def unaugmented(words: list[str]) -> list[str]:
    return [word for word in words if not word.startswith("augment")]


def record_bytes(bench: Bench) -> int:
    return 3 * (32 if bench.small else 224) ** 2


OVERLAP_HEAD = (
    "step, loader",
    "copying alone, ms",
    "computing alone, ms",
    "both, ms",
    "efficiency",
    "limit of the machine / both",
)


def overlap(bench: Bench) -> None:
    """Measure copies beside computing. Efficiency is max(copying alone, computing alone) / both.

    A step of matrix products takes as long as a copy needs (balanced), or four times as long
    (dominated). Normalizing runs on the device, so it counts as computing. The batch is pinned
    once, so the host does nothing else.
    """
    timed = Timed(bench)
    table = bench.table("Overlap", *OVERLAP_HEAD)
    bus_s = timed.num_bytes / bench.floors.copy
    for what, augment in (("copies", timed.keep_bytes), ("normalizing", timed.normalize)):
        for step, share in (("balanced", 1.0), ("dominated", 4.0)):
            count = max(1, round(share * bus_s / timed.product_s))
            product_s = count * timed.operations / bench.floors.products["bf16"]
            compute_s = timed.run(Resident(timed, augment), count)
            copying = timed.loaders(timed.keep_bytes)
            for name, make in timed.loaders(augment).items():
                copy_s = timed.run(copying[name](), 0)
                both_s = timed.run(make(), count)
                efficiency = max(copy_s, compute_s) / both_s
                bench.result[f"{what}/{step}/{name}"] = efficiency
                times = [f"{1e3 * seconds:.2f}" for seconds in (copy_s, compute_s, both_s)]
                ratios = (f"{efficiency:.3f}", f"{max(bus_s, product_s) / both_s:.3f}")
                table.row(f"{what}, {step}: {name}", *times, *ratios)


class SideStream:
    """The scheme of timm's PrefetchLoader, to compare with.

    The next batch is copied and normalized in a side stream, while the step computes on this one. A
    thread pins ahead, as torch's DataLoader does for timm.
    """

    def __init__(self, context: LoaderContext) -> None:
        self.context, self.num_steps = context, context.source.order.num_steps
        self.stream = torch.cuda.Stream(context.device)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[MicroBatch]:
        with closing(Ahead(self._pinned(epoch, start), 2, Occupancy())) as ahead:
            yield from self._overlapped(iter(ahead), epoch)

    def _pinned(self, epoch: int, start: int) -> Iterator[MicroBatch]:
        use(self.context.device, pinned=False)
        for micro in self.context.source.batches(epoch, start):
            yield micro._replace(batch=pin(micro.batch))

    def _overlapped(self, ahead: Iterator[MicroBatch], epoch: int) -> Iterator[MicroBatch]:
        kept: MicroBatch | None = None
        for batch, weight, last in ahead:
            with torch.cuda.stream(self.stream):
                following = MicroBatch(
                    self.context.augment(move(batch, self.context.device), epoch), weight, last
                )
            if kept is not None:
                yield kept
            torch.cuda.current_stream(self.context.device).wait_stream(self.stream)
            for tensor in following.batch.values():
                tensor.record_stream(torch.cuda.current_stream(self.context.device))
            kept = following
        if kept is not None:
            yield kept


class Timed:
    """Loaders under a step that consists of matrix products, as many as take a given time."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        batch_size = 8 if bench.small else 256
        side = 32 if bench.small else 224
        steps = 6 if bench.small else 200  # many: nothing hides the first copy of an epoch
        self.batch = {
            "image": torch.randint(256, (batch_size, 3, side, side), dtype=torch.uint8),
            "label": torch.randint(1000, (batch_size,)),
            "index": torch.arange(batch_size),
        }
        if bench.device.type == "cuda":
            self.batch = pin(self.batch)
        self.num_bytes = sum(tensor.nbytes for tensor in self.batch.values())
        self.source = OneBatch(self.batch, steps)
        self.source.order = replace(
            self.source.order, num_records=batch_size * steps, batch_size=batch_size
        )
        edge = 64 if bench.small else 4096
        self.matrix = torch.randn(edge, edge, device=bench.device, dtype=torch.bfloat16)
        self.operations = 2 * edge**3
        self.product_s = bench.timed(lambda: self.matrix @ self.matrix, 20)
        self.normalizing = Normalize("image", [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])

    def keep_bytes(self, batch: Batch, _: int) -> Batch:
        return batch

    def normalize(self, batch: Batch, _: int) -> Batch:
        return self.normalizing(batch, None)

    def loaders(self, augment: Callable[[Batch, int], Batch]) -> dict[str, Callable[[], Any]]:
        clock = make_clock(self.bench.device, how=False)
        context = LoaderContext(self.source, self.bench.device, augment, clock)
        makers: dict[str, Callable[[], Any]] = {
            "plain": lambda: PlainLoader(pin_memory=True, context=context),
            "prefetch": lambda: PrefetchLoader(depth=2, pin_memory=True, context=context),
            "stream": lambda: StreamLoader(depth=2, copies=2, context=context),
        }
        if self.bench.device.type == "cuda":
            makers["timm's scheme"] = lambda: SideStream(context)
        return makers

    def run(self, loader: Any, count: int) -> float:
        """Return the seconds of a step with ``count`` products and the loader's work."""
        laps: deque[float] = deque(maxlen=3)
        for epoch in range(4):  # one to warm up
            self.bench.wait()
            start = time.perf_counter()
            for micro in loader.epoch(epoch):
                micro.batch["image"][:1].add_(1)
                for _ in range(count):
                    self.matrix @ self.matrix
            self.bench.wait()
            laps.append((time.perf_counter() - start) / loader.num_steps)
        return sorted(laps)[1]


class Resident:
    """A loader without copies: its batch is on the device already."""

    def __init__(self, timed: Timed, augment: Callable[[Batch, int], Batch]) -> None:
        self.batch = move(timed.batch, timed.bench.device)
        self.augment = augment
        self.num_steps = timed.source.order.num_steps

    def epoch(self, epoch: int) -> Iterator[MicroBatch]:
        for _ in range(self.num_steps):
            yield MicroBatch(self.augment(self.batch, epoch), 1.0, last=True)


SWITCHES: list[tuple[str, str, list[str]]] = [
    ("fp32", "fp32", ["precision=fp32", "precision.tf32=false"]),
    ("fp32, TF32 products", "tf32", ["precision=fp32"]),
    ("bf16", "bf16", ["precision=amp"]),
    ("fp16", "fp16", ["precision=amp", "precision.dtype=fp16"]),
    ("bf16, channels_last", "bf16", ["precision=amp", "channels_last=true"]),
    (
        "bf16, channels_last, compile",
        "bf16",
        ["precision=amp", "channels_last=true", "compile=true"],
    ),
    (
        "bf16, channels_last, CUDA graph",
        "bf16",
        ["precision=amp", "channels_last=true", "+optim.fused=true", "cuda_graph=true"],
    ),
]


def switches(bench: Bench) -> None:
    """Measure what each switch gains for a ResNet-18 at 224 and for a small net, on one batch."""
    nets = {
        "ResNet-18 at 224": bench.photos(),
        "ResNet-9 of width 16 at 32": [*bench.photos(512, 32), "model=resnet9", "model.width=16"],
    }
    if bench.small:
        nets = {"ResNet-9 of width 2 at 32": [*bench.photos(), "model=resnet9", "model.width=2"]}
    for net, words in nets.items():
        head = ("switch", "records/s", "spread", "of fp32", "of the matrix rate")
        table = bench.table(f"Computing alone: {net}", *head)
        operations = operations_of(bench, words)
        rates: dict[str, float] = bench.result.setdefault(net, {})
        for name, kind, more in SWITCHES:
            try:
                rate = bench.rate(lambda probe: probe.compute(bench.seconds), *words, *more)
            except Exception as error:  # the other switches are still measured
                table.row(name, "failed", str(error)[:80], "", "")
                continue
            rates[name] = rate.records_per_s
            ratio = rate.records_per_s / rates.get("fp32", float("nan"))
            share = rate.records_per_s * operations / bench.floors.products[kind]
            speed = f"{rate.records_per_s:,.0f}"
            table.row(name, speed, f"{100 * rate.spread:.1f} %", f"{ratio:.2f}", f"{share:.3f}")


def operations_of(bench: Bench, words: list[str]) -> float:
    """Return the floating-point operations of one record, forward and backward."""
    with closing(bench.probe(*words)) as probe:
        model = probe.assembly.build("model").to(bench.device)
        image = torch.randn(2, *probe.batch["image"].shape[1:], device=bench.device)
    with FlopCounterMode(display=False) as counter:
        model(image).sum().backward()
    return counter.get_total_flops() / 2


def overhead(bench: Bench) -> None:
    """Compare the Trainer with a loop written by hand, in turn, on a step of some 100 us.

    Steps run first kernel by kernel, then as one graph on both sides.
    """
    head = ("step", "by hand, us", "the Trainer's more, us", "quartiles")
    table = bench.table("Trainer beside a hand-written loop", *head)
    for name, graphed in (("kernel by kernel", False), ("one graph", True)):
        if graphed and bench.device.type != "cuda":
            continue
        hand, low, middle, high = beside_by_hand(bench, graphed)
        bench.result[name] = {"us": middle, "hand_us": hand, "quartiles_us": [low, high]}
        table.row(name, f"{hand:.1f}", f"{middle:.1f}", f"{low:.1f}, {high:.1f}")


def beside_by_hand(bench: Bench, graphed: bool) -> tuple[float, float, float, float]:
    """Return microseconds of a step by hand, and the three quartiles of what the Trainer adds."""
    theirs, ours = (make_pair(bench, graphed) for _ in range(2))
    batch = {
        "image": torch.rand(64, 1, 16, 16, device=bench.device),
        "label": torch.randint(10, (64,), device=bench.device),
    }
    steps = 20 if bench.small else 300
    recorder = CudaRecorder(bench.device) if graphed else None
    trainer = make_trainer(*ours, batch, steps, make_clock(bench.device), bench.device, recorder)
    by_hand = (
        replaying(*theirs, batch, steps)
        if graphed
        else partial(hand_written, *theirs, batch, steps, metrics=True)
    )
    epochs, differences, hands = trainer.epochs(), [], []
    for number in range(4 if bench.small else 17):
        bench.wait()
        start = time.perf_counter()
        by_hand()
        bench.wait()
        middle = time.perf_counter()
        next(epochs)
        bench.wait()
        if number > 1:
            hands.append(1e6 * (middle - start) / steps)
            differences.append(1e6 * (time.perf_counter() - middle) / steps - hands[-1])
    low, middle, high = (
        sorted(differences)[round(share * (len(differences) - 1))] for share in (0.25, 0.5, 0.75)
    )
    return sorted(hands)[len(hands) // 2], low, middle, high


def make_pair(bench: Bench, fused: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    model, _ = pair()
    model.to(bench.device)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=fused)


def replaying(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, steps: int
) -> Callable[[], None]:
    """Return a loop with a CUDA graph, as a careful person writes it.

    The loop copies the batch in, replays, and sums the losses and the right answers.
    """
    inside = {name: tensor.clone() for name, tensor in batch.items()}
    sums = torch.zeros(2, device=inside["label"].device)

    def step() -> None:
        logits = model(inside["image"])
        loss = nn.functional.cross_entropy(logits, inside["label"])
        loss.backward()
        optimizer.step()
        sums[0] += loss.detach()
        sums[1] += (logits.detach().argmax(1) == inside["label"]).sum()
        optimizer.zero_grad(set_to_none=True)

    recorder = CudaRecorder(inside["label"].device)
    recorder.aside(step)
    replay = recorder.capture(step)

    def loop() -> None:
        sums.zero_()  # the Trainer starts its sums anew, too
        for number in range(1, steps + 1):
            for name, tensor in batch.items():
                inside[name].copy_(tensor)
            replay()
            if number % READ_EVERY == 0:
                sums.tolist()

    return loop


COLORS = "{name: ColorJitter, params: {brightness: 0.4, contrast: 0.4, saturation: 0.4, hue: 0.1}}"
AUGMENTS = {
    "crop_flip": ["augment=crop_flip"],
    "color_jitter": ["augment=color_jitter"],
    "random_erasing": ["augment=random_erasing"],
    "mixup": ["augment=mixup"],
    "cutmix": ["augment=cutmix"],
    "normalize": ["augment=normalize"],
    "four together": [
        "augment=compose",
        "+augment@augment.parts.cut=crop_flip",
        "+augment@augment.parts.color=color_jitter",
        "+augment@augment.parts.erase=random_erasing",
        "+augment@augment.parts.mix=mixup",
        *(f"augment.parts.cut.{key}=null" for key in ("mean", "std")),
    ],
    "kornia": [
        "augment=kornia",
        "augment.pipeline=[{name: RandomHorizontalFlip, params: {p: 0.5}}]",
        "augment.together=true",
    ],
    "kornia: colors": [
        "augment=kornia",
        f"augment.pipeline=[{COLORS}]",
        "augment.together=true",
    ],
}


AUGMENT_HEAD = (
    "augment",
    "ms a batch",
    "of reading and writing as many bytes in its memory",
    "compiled, with its draws",
    "of the same",
    "largest difference from the CPU",
)


def augments(bench: Bench) -> None:
    """Measure the time of a batch on the device, and compare its numbers with the CPU's."""
    shape = (16, 3, 32, 32) if bench.small else (256, 3, 224, 224)
    image = torch.randint(256, shape, dtype=torch.uint8)
    labels = torch.arange(len(image)) % 10
    batch = {"index": torch.arange(len(image)), "image": image, "label": labels}
    title = f"Augmenting {len(image)} images of {image.shape[-1]} on the device"
    table = bench.table(title, *AUGMENT_HEAD)
    for name, words in AUGMENTS.items():
        try:
            augment = make_augment(bench, words)
        except Exception as error:  # kornia is an extra
            table.row(name, "not here", str(error)[:60], "", "", "")
            continue
        table.row(name, *augment_cells(bench, name, augment, batch))


def make_augment(bench: Bench, words: list[str]) -> Augment:
    photos = bench.photos()[: len(PHOTOS) - 5]
    with closing(bench.probe(*photos, *words, "data.source.num_classes=10")) as probe:
        return probe.assembly.augment


def augment_cells(bench: Bench, name: str, augment: Augment, batch: Batch) -> list[str]:
    """Measure an augmentation, put the figures into the result, and return them as text."""
    there = move(batch, bench.device)
    numbers = draws(batch["index"], 0, 0, augment.num_draws) if augment.num_draws else None
    on_device = None if numbers is None else numbers.to(bench.device)
    seconds = bench.timed(partial(augment, there, on_device), 3 if bench.small else 30)
    compiled, note = few_kernels(bench, name, augment, there)
    apart = furthest(augment(batch, numbers), augment(there, on_device))
    limit_s = batch["image"].numel() * 5 / bench.floors.memory  # reads a byte, writes a float
    bench.result[name] = {"ms": 1e3 * seconds, "apart": apart, "note": note, "compiled_ms": None}
    cells = [f"{1e3 * seconds:.3f}", f"{seconds / limit_s:.2f}", "", note, f"{apart:.1e}"]
    if compiled is not None:
        bench.result[name]["compiled_ms"] = 1e3 * compiled
        cells[2:4] = [f"{1e3 * compiled:.3f}", f"{compiled / limit_s:.2f}"]
    return cells


def few_kernels(
    bench: Bench, name: str, augment: Augment, batch: Batch
) -> tuple[float | None, str]:
    """Time a batch with its draws as ``compile=true`` runs it.

    Returns:
        Seconds, or None and why it is not compiled.
    """
    if not getattr(augment, "exact", False) or (
        bench.small and name not in ("crop_flip", "random_erasing")
    ):
        return None, "not compiled"
    notes: list[str] = []

    def finish(batch: Batch, key: Tensor) -> Batch:
        return augment(
            batch,
            keyed_draws(batch["index"], key, augment.num_draws) if augment.num_draws else None,
        )

    fused, key = Fused(finish, notes.append), torch.tensor(key_of(0, 0, ON_DEVICE))
    fused(batch, key)
    seconds = bench.timed(partial(fused, batch, key), 3 if bench.small else 30)
    if notes:
        return None, notes[0]
    return seconds, ""


def furthest(host: Batch, there: Batch) -> float:
    """Return the largest difference of two batches, over all fields."""
    pairs = [(host[name].double(), there[name].cpu().double()) for name in host]
    return max(float((mine - other).abs().max()) for mine, other in pairs)


COMPUTING = ("forward", "backward", "optimizer")
FAST_HEAD = (
    "accuracy",
    "seconds of training, compiling included",
    "of as many typical steps",
    "records/s",
    "of a step outside computing",
)


def cifar10_fast(bench: Bench) -> None:
    """Measure accuracy and seconds of the recipe, and of a plain script with the same net."""
    if bench.cifar10 is None:
        print("\n## cifar10_fast\n\nnot run: --cifar10 FOLDER_OR_TAR is missing", flush=True)
        return
    run_dir = bench.work / "fast"
    words = [
        "recipes=cifar10_fast",
        f"source={folder_of(Path(bench.cifar10), bench.work)}",
        f"dataset={bench.work / 'cifar10'}",
    ]
    tiny = ["limit=512", "batch_size=64"] if bench.small else []
    short = ["epochs=1", "max_steps=3", "device=cpu", "compile=false"] if bench.small else []
    paceline("train", *words, *tiny, *short, f"hydra.run.dir={run_dir}")
    summary = json.loads((run_dir / "summary.json").read_text())
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    rates = sorted(line["records_per_s"] for line in lines if line["split"] == "train")
    rate = rates[len(rates) // 2]  # the first report's steps include compiling
    typical = typical_step(summary["spans"])
    figures = {name: summary[name] for name in ("val", "train_s", "wall_s", "spans")}
    bench.result.update(
        **figures,
        records_per_s=rate,
        steps_s=summary["steps"] * sum(typical.values()),
        outside=1 - sum(typical.get(name, 0.0) for name in COMPUTING) / sum(typical.values()),
    )
    bench.table("cifar10_fast", *FAST_HEAD).row(
        f"{summary['val']['accuracy']:.4f}",
        f"{summary['train_s']:.1f}",
        f"{bench.result['steps_s']:.1f}",
        f"{rate:,.0f}",
        f"{100 * bench.result['outside']:.1f} %",
    )
    plain_script(bench, bench.work / "cifar10")
    operations = operations_of(bench, [*words, *tiny])
    share = bench.result["share"] = rate * operations / bench.floors.products["bf16"]
    print(f"\nof the matrix rate: {share:.3f}", flush=True)


def plain_script(bench: Bench, stores: Path) -> None:
    """Train the published net without a framework, twice: cuDNN searches in the first run."""
    head = ("a plain script, seed", "accuracy", "seconds of training")
    table = bench.table("The published net and schedule on the same images", *head)
    training, test = (arrays_of(stores / f"{name}.h5", bench.device) for name in ("train", "val"))
    if bench.small:
        training, test = (Images(*(part[:1024] for part in images)) for images in (training, test))
    for seed in range(1 if bench.small else 2):
        result = train_plainly(training, test, 1 if bench.small else 10, seed)
        bench.result[f"plain script, seed {seed}"] = result._asdict()
        table.row(str(seed), f"{result.accuracy:.4f}", f"{result.seconds:.1f}")


def arrays_of(store: Path, device: torch.device) -> Images:
    with h5py.File(store) as file:
        pixels, labels = (
            torch.from_numpy(file[f"records/{name}"][:]) for name in ("image", "label")
        )
    return Images(pixels.to(device), labels.to(device))


def typical_step(spans: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the median seconds of each span of a step. Steps that compile hardly matter.

    If the device's ``idle`` is known, the host's ``wait`` lies beside the device's work and does
    not count.
    """
    typical = {name: span["p50_s"] for name, span in spans.items()}
    if "idle" in typical:
        typical.pop("wait", None)
    return typical


def folder_of(given: Path, work: Path) -> Path:
    """Return the folder that has ``train``, unpacked if an archive is given."""
    if not given.is_file():
        return given
    with tarfile.open(given) as archive:
        archive.extractall(work / "source", filter="data")
    return next(path.parent for path in sorted((work / "source").rglob("train")))


def dali(bench: Bench) -> None:
    """Compare DALI and this host at decoding JPEGs of 500 to random crops of 224 on the device."""
    store = packed_jpegs(bench, 2048, 500)
    side = 32 if bench.small else 224
    crop = ["transform=random_resized_crop", f"transform.size=[{side},{side}]", "loader=prefetch"]
    head = ("decoded by", "records/s", "spread", "cores busy")
    table = bench.table("JPEGs of 500 to crops of 224", *head)
    for name, choice in {"DALI": "data=dali", "the cores": "data=hdf5"}.items():
        words = (*of_store(bench.photos(), store), choice, *crop)
        try:
            rate = bench.rate(lambda probe: probe.loader(bench.seconds), *words)
        except ResourceError as error:  # DALI is an extra
            table.row(name, "not here", str(error)[:80], "")
            continue
        bench.result[name] = rate.records_per_s
        speed = f"{rate.records_per_s:,.0f}"
        table.row(name, speed, f"{100 * rate.spread:.1f} %", f"{rate.busy_cores:.1f}")


def replicas(bench: Bench) -> None:
    """Compare one GPU, DataParallel, and a process per GPU, at the same batch."""
    count = 2 if bench.device.type == "cpu" else torch.cuda.device_count()
    if count < 2:
        print("\n## replicas\n\nnot run: there is one GPU", flush=True)
        return
    head = ("parallel", "records/s, the first steps included", "of one")
    table = bench.table(f"A ResNet-18 on {count} replicas", *head)
    for parallel in ("none", "dp", "ddp"):
        run_dir = bench.work / f"replicas-{parallel}"
        words = [
            *bench.photos(),
            f"device={bench.device.type}",
            f"parallel={parallel}",
            f"hydra.run.dir={run_dir}",
            "sink=[]",
            "epochs=1",
            f"max_steps={4 if bench.small else 200}",
            "precision=amp",
        ]
        if parallel == "ddp":
            words.append(f"parallel.num_processes={count}")
        paceline("train", *words)
        rate = json.loads((run_dir / "summary.json").read_text())["records_per_s"]
        bench.result[parallel] = rate
        table.row(parallel, f"{rate:,.0f}", f"{rate / bench.result['none']:.2f}")


PARTS: dict[str, Callable[[Bench], None]] = {
    part.__name__: part
    for part in (
        facts,
        same,
        tests,
        loading,
        overlap,
        overhead,
        cifar10_fast,
        augments,
        switches,
        dali,
        utilization,
        replicas,
    )
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument(
        "--minutes", type=float, default=8.5, help="what is not done by then is left out"
    )
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument(
        "--cifar10", help="a folder of train/ and test/, a subfolder per class, or a tar of one"
    )
    parser.add_argument("--images", help="photographs for utilization, a folder or a tar")
    parser.add_argument("--nets", default="resnet50,resnet18", help="of utilization")
    parser.add_argument("--out", default=".")
    parser.add_argument("--part", choices=PARTS, help="run this part in this process")
    parser.add_argument("--work", help="the working folder of --part")
    return parser.parse_args()


def alone(options: argparse.Namespace) -> int:
    """Run one part in this process. Its figures, and why it failed, go into its working folder."""
    bench = Bench(options, Path(options.work))
    try:
        PARTS[options.part](bench)
    except Exception:
        bench.result["failed"] = traceback.format_exc()
        print(f"\n## {options.part} failed\n\n{bench.result['failed']}", flush=True)
    bench.keep()
    return 0


def in_a_process(name: str, left_s: float, work: Path) -> dict[str, Any]:
    """Run a part, and return its figures, those of an unfinished part included."""
    command = [sys.executable, __file__, *sys.argv[1:], "--part", name, "--work", str(work)]
    if left_s <= 0:
        return {"failed": "no time was left"}
    # Not a session of its own: whatever ends this session must reach the part, too.
    process = subprocess.Popen(command, process_group=0, stdin=subprocess.DEVNULL)
    why = ""
    try:
        code = process.wait(left_s)
        if code:
            why = f"its process ended with {code}"
    except subprocess.TimeoutExpired:
        why = f"was not done in the {left_s:.0f} s that were left"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what the part has started
        process.wait()
    return stored(work, why)


def stored(work: Path, why: str) -> dict[str, Any]:
    """Return the figures that a part has stored, and why there are no more."""
    result: dict[str, Any] = {}
    if (work / RESULT).exists():
        result = json.loads((work / RESULT).read_text())
    if why:
        result["failed"] = why
    return result


def print_goals(options: argparse.Namespace, name: str, result: dict[str, Any]) -> None:
    """Print the goals of a part. On a GPU, add them to its result."""
    rows = judged(name, result)
    if not rows:
        return
    title = f"Goals of {name}"
    if options.device == "cuda" and not options.small:
        result["goals"] = [dict(zip(HEAD, row, strict=True)) for row in rows]
    else:
        title += " (a trial: the figures mean nothing)"
    print_head(title, HEAD)
    for row in rows:
        print_row(row)


def stop(number: int, _: Any) -> None:
    """End as an exception does, so that the part is ended, too."""
    sys.exit(128 + number)


def main() -> int:
    options = parse()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here: nothing run")
        return 0
    if options.part:
        return alone(options)
    signal.signal(signal.SIGTERM, stop)
    end = time.monotonic() + 60 * options.minutes
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    results = dict[str, Any]()
    for name in options.only.split(","):
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="paceline-gpu-") as work:
            try:
                result = results[name] = in_a_process(name, end - start, Path(work))
            except (KeyboardInterrupt, SystemExit):
                results[name] = stored(Path(work), "was interrupted")
                write_json(out / "gpu.json", results)
                raise
        print_goals(options, name, result)
        why = ""
        if "failed" in result:
            why = f", failed: {result['failed'].strip().splitlines()[-1]}"
        print(f"\n({name}: {time.monotonic() - start:.0f} s{why})", flush=True)
        write_json(out / "gpu.json", results)
    return int(any("failed" in result for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
