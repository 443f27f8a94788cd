"""Everything that wants a GPU, in one go and under nine minutes: what the machine can do, whether numbers stay the same, what each switch is worth.

    python benchmarks/gpu.py [--seconds 3] [--minutes 8.5] [--only facts,same,...] [--cifar10 FOLDER_OR_TAR] [--out DIR]
    python benchmarks/gpu.py --device cpu --small     # does the script itself work? its figures mean nothing

Each part runs in a process of its own, since an error on a device may stay with the process, and prints a table; all go into DIR/gpu.json. A part that fails
or finds no time left says so, and the others go on. Rates are means of windows of ``--seconds`` in all, after a burn-in, with half the distance of their quartiles.
Beside each stands the ratio to its floors: bytes over the measured rate of copies (over the bus, or in the device's memory), operations over the
measured rate of matrix products.

Where nothing can be installed, carry wheels of what pyproject.toml asks for (also isal, and antlr4-python3-runtime for hydra-core) and framework/system/native/*.so.
"""

import argparse
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
from overhead import READ_EVERY, OneBatch, hand_written, make_trainer, pair  # noqa: E402
from tune import make_images  # noqa: E402

from framework.augment.fused import Fused  # noqa: E402
from framework.cli.allowed import Grant  # noqa: E402
from framework.cli.compose_config import composed  # noqa: E402
from framework.commands.probe import Probe, Rate  # noqa: E402
from framework.config.assemble import numbered  # noqa: E402
from framework.contracts.batch import Batch, move, pin, use  # noqa: E402
from framework.contracts.data import Augment, MicroBatch  # noqa: E402
from framework.contracts.loader import LoaderContext  # noqa: E402
from framework.errors import ResourceError  # noqa: E402
from framework.loader.plain import PlainLoader  # noqa: E402
from framework.loader.prefetch import PrefetchLoader  # noqa: E402
from framework.loader.queue import Ahead, Occupancy  # noqa: E402
from framework.loader.stream import StreamLoader  # noqa: E402
from framework.measure.clock import make_clock  # noqa: E402
from framework.measure.host import machine  # noqa: E402
from framework.order import device_key, draws, keyed_draws  # noqa: E402
from framework.train.cuda_graph import CudaRecorder  # noqa: E402

NOBODY = Grant(typed=False, exported="")
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


class Floors(NamedTuple):
    """Of this machine, measured: bytes/s from pinned memory, bytes/s read and written in the device's own, and operations/s of matrix
    products by type.
    """

    copy: float
    memory: float
    products: dict[str, float]


class Bench:
    """What parts share. ``small``: sizes at which a CPU gets through; the figures mean nothing."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.device = numbered(torch.device(options.device))
        use(self.device, pinned=False)
        self.seconds, self.small, self.cifar10 = options.seconds, options.small, options.cifar10
        self.work = work
        self._floors: Floors | None = None

    @property
    def floors(self) -> Floors:
        if self._floors is None:
            products = {name: self._product_rate(name) for name in ("fp32", "tf32", "bf16", "fp16")}
            self._floors = Floors(self._copy_rate(), self._memory_rate(), products)
        return self._floors

    def timed(self, work: Callable[[], object], repeats: int) -> float:
        """Seconds of one, over ``repeats``, after as many to warm up."""
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
        return host.numel() / self.timed(lambda: there.copy_(host, non_blocking=True), 10)

    def _memory_rate(self) -> float:
        one = torch.empty(
            (1 << 22) if self.small else (1 << 30), dtype=torch.uint8, device=self.device
        )
        other = torch.empty_like(one)
        return 2 * one.numel() / self.timed(lambda: other.copy_(one), 10)

    def _product_rate(self, name: str) -> float:
        side = 256 if self.small else 8192
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name, torch.float32)
        one = torch.randn(side, side, device=self.device, dtype=kind)
        return 2 * side**3 / self.timed(lambda: one @ one, 10)

    def probe(self, *words: str) -> Probe:
        config, allowed = composed(
            [*words, f"device={self.device.type}", "report_every=50"], NOBODY
        )
        return Probe(config, allowed)

    def photos(self, batch_size: int = 256, side: int = 224) -> list[str]:
        """A ResNet-18 on made-up images in memory."""
        batch_size, side = (8, 32) if self.small else (batch_size, side)
        num = batch_size * 200
        return [
            *PHOTOS,
            f"data.source.image_shape=[3,{side},{side}]",
            f"batch_size={batch_size}",
            f"data.source.num_records={num}",
        ]

    def rate(self, measure: Callable[[Probe], Rate], *words: str) -> Rate:
        with closing(self.probe(*words)) as probe:
            return measure(probe)


def told(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"\n## {title}\n\n| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


# ------------------------------------------------------------------------------------------------------------------- parts


def facts(bench: Bench) -> dict[str, Any]:
    """What the machine is and can do."""
    found: dict[str, Any] = {
        **machine(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
    }
    rates = {
        "GB/s from pinned memory": bench.floors.copy / 1e9,
        "GB/s in the device's memory": bench.floors.memory / 1e9,
    }
    rates |= {
        f"TFLOP/s, products of {name}": rate / 1e12 for name, rate in bench.floors.products.items()
    }
    told(
        "Machine",
        ("what", "found"),
        [(str(key), str(value)) for key, value in found.items()]
        + [(key, f"{value:.1f}") for key, value in rates.items()],
    )
    return {**found, **rates}


def tests(bench: Bench) -> dict[str, Any]:
    """The tests marked gpu."""
    words = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-ra"]
    print("\n## pytest -m gpu\n", flush=True)
    done = subprocess.run(
        words, check=False, cwd=Path(__file__).parents[1]
    )  # says what it finds as it goes
    if done.returncode:
        raise RuntimeError(f"pytest -m gpu ended with {done.returncode}")
    return {"rc": done.returncode}


def same(bench: Bench) -> dict[str, Any]:
    """Losses of the three loaders, and of a set on the device, bit by bit, each in a process of its own; plain twice, since kernels may not
    repeat themselves. RuntimeError where plain does and another does not agree.
    """
    found: dict[str, list[str]] = {}
    kinds = {
        name: f"loader={name.split()[0]}" for name in ("plain", "plain again", "prefetch", "stream")
    }
    for name, choice in {
        **kinds,
        "stage=device": "data.stage=device",
        "stage=device, stream": "loader=stream",
    }.items():
        run_dir = bench.work / f"same-{len(found)}"
        words = [
            choice,
            *(["data.stage=device", "workers.num=0"] if "stage" in name else ["workers.num=2"]),
            f"device={bench.device.type}",
            "recipes=digits",
            f"dataset={bench.work / 'digits'}",
            "max_steps=60",
            "report_every=1",
        ]
        command = [
            sys.executable,
            "-m",
            "framework",
            "train",
            *words,
            "augment=crop_flip",
            "sink=[jsonl]",
            f"hydra.run.dir={run_dir}",
        ]
        command += ["augment.mean=[0.5]", "augment.std=[0.5]", "workers.kind=thread"]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-500:])
        lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        found[name] = [float(line["loss"]).hex() for line in lines if line["split"] == "train"]
    rows = [
        (loader, str(len(losses)), str(losses == found["plain"]))
        for loader, losses in found.items()
    ]
    told("The same numbers", ("loader", "losses", "those of plain, bit by bit"), rows)
    agree = {loader: losses == found["plain"] for loader, losses in found.items()}
    if agree["plain again"] and not all(agree.values()):
        raise RuntimeError(
            f"not the same numbers: {', '.join(name for name, same in agree.items() if not same)}"
        )
    return agree


def loading(bench: Bench) -> dict[str, Any]:
    """Raw images to the device, beside the bandwidth: uint8 over the bus, with and without normalizing there; one batch for ever, pinned once,
    and from a store in memory, gathered anew.
    """
    rows, found = [], {}
    for augment in ("none", "normalize"):
        for loader in ("plain", "prefetch", "stream"):
            words = (
                bench.photos()
                if augment == "normalize"
                else [*unaugmented(bench.photos()), "augment=none"]
            )
            rate = bench.rate(lambda probe: probe.loader(bench.seconds), *words, f"loader={loader}")
            share = rate.records_per_s * record_bytes(bench) / bench.floors.copy
            rows.append(
                (
                    f"{loader}, augment={augment}",
                    f"{rate.records_per_s:,.0f}",
                    f"{100 * rate.spread:.1f} %",
                    f"{share:.3f}",
                )
            )
            found[f"{loader}/{augment}"] = share
    store = packed(bench, 2560, 224, "pack.encode=raw")
    for loader in ("plain", "prefetch", "stream"):
        words = [
            *of_store(bench.photos(), store),
            "data=hdf5",
            "data.stage=ram",
            f"loader={loader}",
        ]
        rate = bench.rate(lambda probe: probe.loader(bench.seconds), *words)
        share = found[f"{loader}/store"] = (
            rate.records_per_s * record_bytes(bench) / bench.floors.copy
        )
        rows.append(
            (
                f"{loader}, from a store",
                f"{rate.records_per_s:,.0f}",
                f"{100 * rate.spread:.1f} %",
                f"{share:.3f}",
            )
        )
    told(
        "Loader to device, raw 224, batches of 256",
        ("loader", "records/s", "spread", "of the pinned copy rate"),
        rows,
    )
    return found


def packed(bench: Bench, count: int, side: int, *words: str) -> Path:
    """A store of JPEGs of smooth noise."""
    count, side = (32, 32) if bench.small else (count, side)
    folder, store = bench.work / f"images-{side}", bench.work / f"images-{side}-{len(words)}.h5"
    make_images(folder, count, side, 0)
    command = [
        sys.executable,
        "-m",
        "framework",
        "pack",
        f"input.path={folder}",
        f"output.path={store}",
        *words,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
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


def overlap(bench: Bench) -> dict[str, Any]:
    """max(loading alone, computing alone) / a step of both: for a step that costs what its data does by this loader, and for one that costs
    much more. The batch is pinned once, so that loading is the copy and normalizing.
    """
    timed, rows, found = Timed(bench), [], {}
    for name, make in timed.loaders().items():
        load_s = timed.run(make(), 0)
        for what, share in (("balanced", 1.0), ("computing dominates", 4.0)):
            count = max(1, round(share * load_s / timed.product_s))
            compute_s, both_s = (
                bench.timed(partial(timed.compute, count), 30),
                timed.run(make(), count),
            )
            floor_s = max(
                timed.num_bytes / bench.floors.copy,
                count * timed.operations / bench.floors.products["bf16"],
            )
            found[f"{what}/{name}"] = max(load_s, compute_s) / both_s
            rows.append(
                (
                    f"{what}: {name}",
                    f"{1e3 * load_s:.2f}",
                    f"{1e3 * compute_s:.2f}",
                    f"{1e3 * both_s:.2f}",
                    f"{max(load_s, compute_s) / both_s:.3f}",
                    f"{floor_s / both_s:.3f}",
                )
            )
    told(
        "Overlap",
        ("step, loader", "loading, ms", "computing, ms", "both, ms", "efficiency", "floor / both"),
        rows,
    )
    return found


class SideStream:
    """A transcription of the scheme of timm's PrefetchLoader: the next batch is copied and normalized in a side stream while this one is computed on.
    A thread pins ahead, as torch's DataLoader does for it.
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
    """Loaders under a step that is nothing but as many matrix products as take a given time."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        batch_size, side, steps = (
            (8, 32, 6) if bench.small else (256, 224, 400)
        )  # an epoch's first batch is hidden by nothing
        self.batch = {
            "image": torch.randint(256, (batch_size, 3, side, side), dtype=torch.uint8),
            "label": torch.randint(1000, (batch_size,)),
        }
        self.batch["index"] = torch.arange(batch_size)
        self.batch = pin(self.batch) if bench.device.type == "cuda" else self.batch
        self.num_bytes = sum(tensor.nbytes for tensor in self.batch.values())
        self.source = OneBatch(self.batch, steps)
        self.source.order = replace(
            self.source.order, num_records=batch_size * steps, batch_size=batch_size
        )
        edge = 64 if bench.small else 4096
        self.one = torch.randn(edge, edge, device=bench.device, dtype=torch.bfloat16)
        self.operations = 2 * edge**3
        self.product_s = bench.timed(lambda: self.one @ self.one, 20)

    def augment(self, batch: Batch, _: int) -> Batch:
        return {**batch, "image": batch["image"].to(torch.float32).mul_(1 / 127.5).sub_(1)}

    def loaders(self) -> dict[str, Callable[[], Any]]:
        context = LoaderContext(
            self.source, self.bench.device, self.augment, make_clock(self.bench.device, how=False)
        )
        ours: dict[str, Callable[[], Any]] = {
            "plain": lambda: PlainLoader(pin_memory=True, context=context),
            "prefetch": lambda: PrefetchLoader(depth=2, pin_memory=True, context=context),
            "stream": lambda: StreamLoader(depth=2, copies=2, context=context),
        }
        return (
            {**ours, "timm's scheme": lambda: SideStream(context)}
            if self.bench.device.type == "cuda"
            else ours
        )

    def compute(self, count: int) -> None:
        for _ in range(count):
            self.one @ self.one

    def run(self, loader: Any, count: int) -> float:
        """Seconds a step, of ``count`` products and the loader's work."""
        laps: deque[float] = deque(maxlen=3)
        for epoch in range(5):  # two to warm up
            self.bench.wait()
            start = time.perf_counter()
            for micro in loader.epoch(epoch):
                micro.batch["image"][:1].add_(1)
                self.compute(count)
            self.bench.wait()
            laps.append((time.perf_counter() - start) / loader.num_steps)
        return sorted(laps)[1]


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


def switches(bench: Bench) -> dict[str, Any]:
    """What each is worth, on one batch for ever: a ResNet-18 at 224, and a small net."""
    found: dict[str, Any] = {}
    nets = {
        "ResNet-18 at 224": bench.photos(),
        "ResNet-9 of width 16 at 32": [*bench.photos(512, 32), "model=resnet9", "model.width=16"],
    }
    if bench.small:
        nets = {"ResNet-9 of width 2 at 32": [*bench.photos(), "model=resnet9", "model.width=2"]}
    for net, words in nets.items():
        rows: list[tuple[str, ...]] = []
        operations = operations_of(bench, words)
        for name, kind, more in SWITCHES:
            try:
                rate = bench.rate(lambda probe: probe.compute(bench.seconds), *words, *more)
            except Exception as error:  # the others go on
                rows.append((name, "failed", str(error)[:80], "", ""))
                continue
            found.setdefault(net, {})[name] = rate.records_per_s
            first = found[net].get("fp32", float("nan"))
            share = rate.records_per_s * operations / bench.floors.products[kind]
            rows.append(
                (
                    name,
                    f"{rate.records_per_s:,.0f}",
                    f"{100 * rate.spread:.1f} %",
                    f"{rate.records_per_s / first:.2f}",
                    f"{share:.3f}",
                )
            )
        told(
            f"Computing alone: {net}",
            ("switch", "records/s", "spread", "of fp32", "of the matrix rate"),
            rows,
        )
    return found


def operations_of(bench: Bench, words: list[str]) -> float:
    """Of one record, forward and backward."""
    with closing(bench.probe(*words)) as probe:
        model = probe.assembly.build("model").to(bench.device)
        image = torch.randn(2, *probe.batch()["image"].shape[1:], device=bench.device)
    with FlopCounterMode(display=False) as counter:
        model(image).sum().backward()
    return counter.get_total_flops() / 2


def overhead(bench: Bench) -> dict[str, Any]:
    """The Trainer beside a hand-written loop, in turn, on a step of some 100 us: kernel by kernel, and both as one graph a step."""
    rows, found = [], {}
    for name, graphed in (("kernel by kernel", False), ("one graph", True)):
        if graphed and bench.device.type != "cuda":
            continue
        hand, low, middle, high = beside_by_hand(bench, graphed)
        rows.append((name, f"{hand:.1f}", f"{middle:.1f}", f"{low:.1f}, {high:.1f}"))
        found[name] = {"us": middle, "hand_us": hand}
    told(
        "Trainer beside a hand-written loop",
        ("step", "hand-written, us", "the Trainer's more, us", "quartiles"),
        rows,
    )
    return found


def beside_by_hand(bench: Bench, graphed: bool) -> tuple[float, float, float, float]:
    """Microseconds a step by hand, and quartiles of what the Trainer takes more."""
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
    """What a careful person writes with a graph: copy the batch in, replay, add up the losses and the right answers."""
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
        sums.zero_()  # as the Trainer begins its sums anew; and the graph's memory stays ours while the loop lives
        for number in range(1, steps + 1):
            for name, tensor in batch.items():
                inside[name].copy_(tensor)
            replay()
            if number % READ_EVERY == 0:
                sums.tolist()

    return loop


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
        "augment.pipeline=[{name: ColorJitter, params: {brightness: 0.4, contrast: 0.4, saturation: 0.4, hue: 0.1}}]",
        "augment.together=true",
    ],
}


def augments(bench: Bench) -> dict[str, Any]:
    """A batch of each, and the numbers beside the CPU's."""
    rows, found = [], {}
    image = torch.randint(
        256, (16, 3, 32, 32) if bench.small else (256, 3, 224, 224), dtype=torch.uint8
    )
    batch = {
        "index": torch.arange(len(image)),
        "image": image,
        "label": torch.arange(len(image)) % 10,
    }
    for name, words in AUGMENTS.items():
        try:
            with closing(
                bench.probe(
                    *bench.photos()[: len(PHOTOS) - 5], *words, "data.source.num_classes=10"
                )
            ) as probe:
                augment = probe.assembly.augment
        except Exception as error:  # kornia is an extra
            rows.append((name, "not here", str(error)[:60], "", "", ""))
            continue
        there, numbers = (
            move(batch, bench.device),
            draws(batch["index"], 0, 0, augment.num_draws) if augment.num_draws else None,
        )
        on_device = None if numbers is None else numbers.to(bench.device)
        took = bench.timed(partial(augment, there, on_device), 3 if bench.small else 30)
        compiled, note = few_kernels(bench, name, augment, there)
        apart = furthest(augment(batch, numbers), augment(there, on_device))
        limit = image.numel() * 5 / bench.floors.memory  # a byte read and a float written
        columns = [
            cell
            for s in (took, compiled)
            for cell in (("", note) if s is None else (f"{1e3 * s:.3f}", f"{s / limit:.2f}"))
        ]
        rows.append((name, *columns, f"{apart:.1e}"))
        found[name] = {
            "ms": 1e3 * took,
            "compiled_ms": compiled and 1e3 * compiled,
            "apart": apart,
            "note": note,
        }
    told(
        f"Augmenting {len(image)} images of {image.shape[-1]} on the device",
        (
            "augment",
            "ms a batch",
            "of reading and writing as many bytes in its memory",
            "compiled, with its draws",
            "of the same",
            "furthest from the CPU's",
        ),
        rows,
    )
    return found


def few_kernels(
    bench: Bench, name: str, augment: Augment, batch: Batch
) -> tuple[float | None, str]:
    """Seconds for a batch with its draws as ``compile=true`` has it; None, and why, where it is not compiled."""
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

    fused, key = Fused(finish, notes.append), device_key(0, 0)
    fused(batch, key)
    seconds = bench.timed(partial(fused, batch, key), 3 if bench.small else 30)
    return (None, notes[0]) if notes else (seconds, "")


def furthest(one: Batch, other: Batch) -> float:
    return max(float((one[name].double() - other[name].cpu().double()).abs().max()) for name in one)


def cifar10_fast(bench: Bench) -> dict[str, Any]:
    """Seconds to an accuracy, by the recipe as it stands."""
    if bench.cifar10 is None:
        print("\n## cifar10_fast\n\nnot run: --cifar10 FOLDER")
        return {}
    run_dir = bench.work / "fast"
    words = [
        "recipes=cifar10_fast",
        f"source={folder_of(Path(bench.cifar10), bench.work)}",
        f"dataset={bench.work / 'cifar10'}",
        f"hydra.run.dir={run_dir}",
    ]
    words += (
        [
            "epochs=1",
            "max_steps=3",
            "limit=512",
            "batch_size=64",
            "model.widths=[4,4,4]",
            "device=cpu",
        ]
        if bench.small
        else []
    )
    done = subprocess.run(
        [sys.executable, "-m", "framework", "train", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    summary = json.loads((run_dir / "summary.json").read_text())
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    rates = sorted(line["records_per_s"] for line in lines if line["split"] == "train")
    rate = rates[len(rates) // 2]  # of a report's steps: the first report's hold compiling
    # medians of steps, for the same reason; the host's waiting lies beside the device's work where that is known
    typical = {
        name: span["p50_s"]
        for name, span in summary["spans"].items()
        if name != "wait" or "idle" not in summary["spans"]
    }
    outside = 1 - sum(
        typical.get(name, 0.0) for name in ("forward", "backward", "optimizer")
    ) / sum(typical.values())
    share = (
        rate
        * operations_of(
            bench, [*unaugmented(bench.photos(512, 32)), "augment=none", "model=airbench"]
        )
        / bench.floors.products["bf16"]
    )
    row = (
        f"{summary['val']['accuracy']:.4f}",
        f"{summary['train_s']:.1f}",
        f"{rate:,.0f}",
        f"{100 * outside:.1f} %",
        f"{share:.3f}",
    )
    head = (
        "accuracy",
        "seconds of training, compiling included",
        "records/s",
        "of a step outside computing",
        "of the matrix rate",
    )
    told("cifar10_fast", head, [row])
    return {
        **{name: summary[name] for name in ("val", "train_s", "spans")},
        "records_per_s": rate,
        "outside": outside,
        "share": share,
    }


def folder_of(given: Path, work: Path) -> Path:
    """The folder that has ``train``, out of the archive where it is one."""
    if not given.is_file():
        return given
    with tarfile.open(given) as archive:
        archive.extractall(work / "source", filter="data")
    return next(path.parent for path in sorted((work / "source").rglob("train")))


def dali(bench: Bench) -> dict[str, Any]:
    """JPEGs of 500 to random crops of 224 on the device: decoded there by DALI, and by this process's cores."""
    rows, found = [], {}
    store = packed(bench, 2048, 500)
    crop = [
        "transform=random_resized_crop",
        f"transform.size={[32, 32] if bench.small else [224, 224]}",
        "loader=prefetch",
    ]
    for name, words in {"DALI": ["data=dali"], "the cores": ["data=hdf5"]}.items():
        try:
            rate = bench.rate(
                lambda probe: probe.loader(bench.seconds),
                *of_store(bench.photos(), store),
                *words,
                *crop,
            )
        except ResourceError as error:  # DALI is an extra
            rows.append((name, "not here", str(error)[:80], ""))
            continue
        found[name] = rate.records_per_s
        cores = "" if rate.busy_cores is None else f"{rate.busy_cores:.1f}"
        rows.append((name, f"{rate.records_per_s:,.0f}", f"{100 * rate.spread:.1f} %", cores))
    told("JPEGs of 500 to crops of 224", ("decoded by", "records/s", "spread", "cores busy"), rows)
    return found


def replicas(bench: Bench) -> dict[str, Any]:
    """One GPU, DataParallel, and a process per GPU, at the same batch."""
    count = 2 if bench.device.type == "cpu" else torch.cuda.device_count()
    if count < 2:
        print("\n## replicas\n\nnot run: one GPU")
        return {}
    rows, found = [], {}
    for parallel in ("none", "dp", "ddp"):
        run_dir = bench.work / f"replicas-{parallel}"
        words = [
            *bench.photos(),
            f"device={bench.device.type}",
            f"parallel={parallel}",
            f"hydra.run.dir={run_dir}",
            "sink=[]",
        ]
        words += ["epochs=1", f"max_steps={4 if bench.small else 200}", "precision=amp"]
        words += [f"parallel.num_processes={count}"] if parallel == "ddp" else []
        done = subprocess.run(
            [sys.executable, "-m", "framework", "train", *words],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-500:])
        found[parallel] = json.loads((run_dir / "summary.json").read_text())["records_per_s"]
        rows.append((parallel, f"{found[parallel]:,.0f}", f"{found[parallel] / found['none']:.2f}"))
    told(
        f"A ResNet-18 on {count} replicas",
        ("parallel", "records/s, the first steps included", "of one"),
        rows,
    )
    return found


PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
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
        replicas,
    )
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
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
    parser.add_argument("--out", default=".")
    parser.add_argument("--part", choices=PARTS, help="this one, in this process")
    parser.add_argument("--work", help="its folder")
    return parser.parse_args()


def alone(options: argparse.Namespace) -> int:
    """One part, here; what it found, or why it failed, goes into ``OUT/gpu-PART.json``."""
    try:
        found = PARTS[options.part](Bench(options, Path(options.work)))
    except Exception:
        found = {"failed": traceback.format_exc()}
        print(f"\n## {options.part} failed\n\n{found['failed']}", flush=True)
    Path(options.out, f"gpu-{options.part}.json").write_text(json.dumps(found))
    return 0


def in_a_process(
    options: argparse.Namespace, name: str, left_s: float, work: str
) -> dict[str, Any]:
    """What the part found, or why it did not."""
    told_in = Path(options.out, f"gpu-{name}.json")
    told_in.unlink(missing_ok=True)
    command = [sys.executable, __file__, *sys.argv[1:], "--part", name, "--work", work]
    if left_s <= 0:
        return {"failed": "no time was left"}
    process = subprocess.Popen(command, start_new_session=True)
    try:
        code = process.wait(left_s)
    except subprocess.TimeoutExpired:
        return {"failed": f"was not done in the {left_s:.0f} s that were left"}
    finally:
        with suppress(ProcessLookupError):
            os.killpg(
                process.pid, signal.SIGKILL
            )  # and what it has started, also where this script is told to stop
        process.wait()
    return (
        json.loads(told_in.read_text())
        if told_in.exists()
        else {"failed": f"its process ended with {code}"}
    )


def main() -> int:
    options = parse()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here: nothing run")
        return 0
    Path(options.out).mkdir(parents=True, exist_ok=True)
    if options.part:
        return alone(options)
    begun, found = time.monotonic(), dict[str, Any]()
    for name in options.only.split(","):
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="paceline-gpu-") as work:
            found[name] = in_a_process(options, name, begun + 60 * options.minutes - start, work)
        why = (
            f", failed: {found[name]['failed'].strip().splitlines()[-1]}"
            if "failed" in found[name]
            else ""
        )
        print(f"\n({name}: {time.monotonic() - start:.0f} s{why})", flush=True)
        Path(options.out, "gpu.json").write_text(json.dumps(found, indent=1))
    return int(any("failed" in one for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
