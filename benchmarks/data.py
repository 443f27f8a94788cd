"""Compare reading and packing with the peers: other data loaders on the same data.

    make bench-data IMAGES=FOLDER_OR_TAR CIFAR=FOLDER_OR_TAR
    python benchmarks/data.py --images ... --cifar ... [--rounds 5] [--quick]
                              [--workloads ABCDEMPRS] [--only ffcv]

Workloads:

- A: full-size JPEG files, random-resized crop 224 and flip, batches of 64, uint8 NCHW
- B: the same files prepared (shorter side 256, JPEG quality 90)
- C: the same images as raw pixels (the middle 256 x 256)
- D: small raw images, shuffled, batches of 256, uint8 NCHW
- E: D with flip, pad-4 crop and normalization to float32
- M: B with masks and boxes, through one random-resized crop
- R: records of 1 to 1,000 float32
- S: the share of padding with and without buckets
- F: start and memory, measured in A
- P: packing, and how far our pixels are from Pillow's

Every round runs every contestant once, each in a process of its own. The process

1. imports torch, and its memory is measured,
2. imports its own libraries,
3. opens its data, and the time of the first batch counts from here,
4. runs an epoch that is checked and not timed,
5. runs three timed laps: whole epochs, for at least half a second.

A ratio compares two contestants of the same round. The report has the median of all rounds.
"""

import argparse
import datetime as dt
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
from peers import made, measure, report  # noqa: E402
from peers.work import Work  # noqa: E402

NUM_IMAGES, NUM_SMALL, NUM_RAGGED, QUICK_SHARE = 800, 40_000, 40_000, 10
BATCH_SIZE = {"A": 64, "B": 64, "C": 64, "D": 256, "E": 256, "M": 64, "R": 256}
DATA_OF = {"A": "A", "B": "B", "C": "C", "D": "D", "E": "D", "M": "M", "R": "R"}


class Contestant(NamedTuple):
    """A way to do a workload: a row of the report.

    Attributes:
        workload: The letter of the workload.
        role: "ours", "peer", or "bound" for a limit of the machine.
        filter: How it shrinks images: "antialiased", "linear", or "-" if it does not. Only rows
            with the same filter are compared.
        name: The name in the report.
        enter: The function that opens the data and returns an ``Epoch``.
        make: The function that writes the contestant's own format, or "".
        before: The folder of the revision of Paceline that it runs, or "" for this one.
    """

    workload: str
    role: str
    filter: str
    name: str
    enter: str
    make: str = ""
    before: str = ""


def contestants() -> Iterator[Contestant]:
    for filter_ in ("antialiased", "linear"):
        for workload in "AB":
            yield from image_files(workload, filter_)
        yield from raw_images(filter_)
    yield from small_images()
    yield from marked_images()
    yield from ragged_rows()


def image_files(workload: str, filter_: str) -> Iterator[Contestant]:
    def row(role: str, name: str, module: str, function: str, make: str = "") -> Contestant:
        return Contestant(
            workload, role, filter_, name, f"peers.{module}.{function}", make and f"peers.{make}"
        )

    yield row("bound", "a thread per core, no framework", "bounds", "jpeg")
    if filter_ == "antialiased":
        yield row("bound", "the same, decoding alone", "bounds", "decode_alone")
        yield row("peer", "DataLoader + Pillow", "torch_loader", "pillow")
        yield row("ours", "paceline dataset + Pillow", "ours", "dataset_pillow")
        yield row("ours", "paceline dataset + Pillow, threads", "ours", "dataset_pillow_threads")
        yield row("peer", "SPDL (FFmpeg)", "spdl", "jpeg")
        yield row("peer", "ffcv (its own JPEG, quality 90)", "ffcv", "images", "ffcv.make_jpeg")
    yield row("ours", "paceline hdf5", "ours", "hdf5", "ours.make_stores")
    yield row("ours", "paceline lmdb", "ours", "lmdb", "ours.make_stores")
    yield row("ours", "paceline folder", "ours", "folder")
    # the shards of webdataset's row, in any order
    yield row("ours", "paceline tar", "ours", "tar", "webdataset.make_jpeg")
    if filter_ == "antialiased":
        yield row(
            "ours", "paceline hdf5, verify=always", "ours", "hdf5_verified", "ours.make_stores"
        )
    yield row("peer", "DataLoader + simplejpeg", "torch_loader", "simplejpeg")
    yield row("ours", "paceline dataset + simplejpeg", "ours", "dataset_simplejpeg")
    yield row(
        "peer", "prefetch_generator + DataLoader + simplejpeg", "torch_loader", "prefetch_generator"
    )
    yield row(
        "peer", "textbook HDF5 + simplejpeg", "textbook", "hdf5_jpeg", "textbook.make_hdf5_jpeg"
    )
    yield row(
        "peer", "textbook LMDB + simplejpeg", "textbook", "lmdb_jpeg", "textbook.make_lmdb_jpeg"
    )
    yield row("peer", "DALI CPU", "dali", "jpeg")
    yield row("peer", "litdata + simplejpeg", "litdata", "jpeg", "litdata.make_jpeg")
    yield row("peer", "webdataset + simplejpeg", "webdataset", "jpeg", "webdataset.make_jpeg")
    yield row("peer", "mosaicml-streaming + simplejpeg", "streaming", "jpeg", "streaming.make_jpeg")


def raw_images(filter_: str) -> Iterator[Contestant]:
    def row(role: str, name: str, module: str, function: str, make: str = "") -> Contestant:
        return Contestant(
            "C", role, filter_, name, f"peers.{module}.{function}", make and f"peers.{make}"
        )

    yield row("bound", "a thread per core, no framework", "bounds", "raw")
    yield row("ours", "paceline hdf5", "ours", "hdf5", "ours.make_stores")
    yield row("ours", "paceline lmdb", "ours", "lmdb", "ours.make_stores")
    if filter_ == "antialiased":
        yield row("ours", "paceline hdf5, stored as planes", "ours", "hdf5_chw", "ours.make_chw")
        yield row("peer", "ffcv raw, 256 x 256", "ffcv", "images", "ffcv.make_raw")
        yield row("peer", "ffcv raw, longer side 400", "ffcv", "images_400", "ffcv.make_raw_400")
    yield row("peer", "textbook HDF5", "textbook", "hdf5", "textbook.make_hdf5")
    yield row(
        "peer",
        "textbook HDF5, auto-chunked",
        "textbook",
        "hdf5_chunked",
        "textbook.make_hdf5_chunked",
    )
    yield row("peer", "textbook LMDB", "textbook", "lmdb_raw", "textbook.make_lmdb_raw")
    yield row("peer", "DALI CPU (numpy reader)", "dali", "raw", "dali.make_raw")


def small_images() -> Iterator[Contestant]:
    def row(
        workload: str, role: str, name: str, module: str, function: str, make: str = ""
    ) -> Contestant:
        return Contestant(
            workload, role, "-", name, f"peers.{module}.{function}", make and f"peers.{make}"
        )

    yield row("D", "bound", "memcpy", "bounds", "memcpy")
    yield row("D", "ours", "paceline hdf5", "ours", "hdf5", "ours.make_stores")
    yield row("D", "ours", "paceline lmdb", "ours", "lmdb", "ours.make_stores")
    yield row(
        "D", "ours", "paceline hdf5, verify=always", "ours", "hdf5_verified", "ours.make_stores"
    )
    yield row("D", "peer", "ffcv raw", "ffcv", "small", "ffcv.make_small")
    yield row(
        "D",
        "peer",
        "HDF5 loaded whole, by batch",
        "in_memory",
        "hdf5_whole",
        "textbook.make_hdf5_plain",
    )
    yield row("D", "peer", "TensorDataset, batch sampler", "in_memory", "tensor_dataset")
    yield row(
        "D",
        "peer",
        "h5py, sorted read by batch",
        "in_memory",
        "hdf5_sorted",
        "textbook.make_hdf5_plain",
    )
    yield row("D", "peer", "textbook HDF5", "textbook", "hdf5_plain", "textbook.make_hdf5_plain")
    yield row("D", "peer", "textbook LMDB", "textbook", "lmdb_plain", "textbook.make_lmdb_plain")
    yield row("D", "peer", "litdata", "litdata", "small", "litdata.make_small")
    yield row("D", "peer", "mosaicml-streaming", "streaming", "small", "streaming.make_small")
    yield row("E", "ours", "paceline hdf5 + crop_flip", "ours", "augmented", "ours.make_stores")
    yield row("E", "peer", "per item, DataLoader", "in_memory", "per_item")
    yield row("E", "peer", "vectorized torch gather, in memory", "in_memory", "vectorized")
    yield row("E", "peer", "ffcv", "ffcv", "small_augmented", "ffcv.make_small_images")
    yield row("E", "peer", "DALI CPU (external_source)", "dali", "small")


def marked_images() -> Iterator[Contestant]:
    def row(role: str, name: str, enter: str, make: str = "") -> Contestant:
        return Contestant("M", role, "linear", name, f"peers.{enter}", make and f"peers.{make}")

    yield row("ours", "paceline hdf5", "ours.marked_hdf5", "ours.make_marked")
    yield row("peer", "DataLoader + Albumentations", "albumentations.marked")


def ragged_rows() -> Iterator[Contestant]:
    def row(role: str, name: str, enter: str, make: str) -> Contestant:
        return Contestant("R", role, "-", name, f"peers.{enter}", f"peers.{make}")

    variable = "ragged.make_variable"
    yield row("ours", "paceline hdf5", "ours.ragged_hdf5", "ours.make_ragged")
    yield row("ours", "paceline lmdb", "ours.ragged_lmdb", "ours.make_ragged")
    yield row("peer", "HDF5 of variable length, by batch", "ragged.by_batch", variable)
    yield row("peer", "HDF5 of variable length, DataLoader", "ragged.by_item", variable)
    yield row("peer", "litdata", "litdata.ragged", "litdata.make_ragged")


BASELINES = {
    "A": "DataLoader + Pillow",
    "B": "DataLoader + Pillow",
    "C": "textbook HDF5",
    "D": "textbook HDF5",
    "E": "per item, DataLoader",
    "M": "DataLoader + Albumentations",
    "R": "HDF5 of variable length, DataLoader",
}


def earlier(row: Contestant, folder: str) -> Iterator[Contestant]:
    """Yield one of our rows as another revision runs it."""
    if row.role == "ours":
        yield row._replace(name=f"{row.name}, before", before=os.path.abspath(folder))


class Bench:
    """The work folder, and the steps that fill it and run the contestants."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        share = QUICK_SHARE if options.quick else 1
        self.counts = dict.fromkeys("ABCM", options.images_count // share) | {
            "D": options.small_count // share,
            "R": options.ragged_count // share,
        }
        self.log = Path(options.work, "log.txt").absolute()

    def folder(self, data: str) -> str:
        return os.path.abspath(os.path.join(self.options.work, f"{data}-{self.counts[data]}"))

    def work(self, contestant: Contestant) -> Work:
        data = DATA_OF[contestant.workload]
        size = (
            BATCH_SIZE[contestant.workload],
            self.options.workers,
            contestant.filter == "antialiased",
        )
        return Work(contestant.workload, self.folder(data), self.counts[data], *size)

    def make_data(self, wanted: set[str]) -> dict[str, str]:
        """Make the data of the wanted workloads.

        Returns:
            The workloads that cannot run, with the reason.
        """
        absent: dict[str, str] = {}
        images, small = self.options.images, self.options.cifar
        for workload in sorted(wanted):
            needed, option = (small, "--cifar") if workload in "DE" else (images, "--images")
            if needed is None and workload not in "RS":
                absent[workload] = f"no {option} given"
        if wanted - set(absent) & set("ABCMP"):
            self._once(
                "A", images, lambda folder: made.make_full_size(images, folder, self.counts["A"])
            )
        if wanted - set(absent) & set("BCM"):
            self._once(
                "B",
                images,
                lambda folder: made.make_prepared(self.folder("A"), folder, self.options.workers),
            )
        if "C" in wanted and "C" not in absent:
            self._once(
                "C",
                images,
                lambda folder: made.make_raw(self.folder("B"), self.folder("A"), folder),
            )
        if wanted - set(absent) & set("DE"):
            self._once("D", small, lambda folder: made.make_small(small, folder, self.counts["D"]))
        if "M" in wanted - set(absent):
            self._once("M", images, lambda folder: made.make_marked(self.folder("B"), folder))
        if "R" in wanted:
            self._once("R", "random", lambda folder: made.make_ragged(folder, self.counts["R"]))
        return absent

    def _once(self, data: str, source: str, make: Callable[[str], None]) -> None:
        """Make a data set, unless it is complete and from the same source.

        The stamp is written last, so a data set that was interrupted is made again.
        """
        folder = Path(self.folder(data))
        stamp, name = folder / "made-from.txt", os.path.abspath(source)
        if stamp.exists() and stamp.read_text() == name:
            return
        print(f"making the data of {data} from {source}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(str(folder))
        stamp.write_text(name)

    def make_formats(self, rows: list[Contestant]) -> dict[Contestant, str]:
        """Write the contestants' own formats, each only once.

        Ours is written in every run, because our code is what changes.

        Returns:
            The contestants whose format cannot be written, with the reason.
        """
        failed: dict[tuple[str, str], str] = {}
        for row in rows:
            if row.role == "ours":
                Path(self.work(row).path(f"{row.make}.made")).unlink(missing_ok=True)
        for row in rows:
            work = self.work(row)
            stamp = Path(work.path(f"{row.make}.made"))
            if not row.make or stamp.exists() or (work.folder, row.make) in failed:
                continue
            print(f"making {row.make} of {DATA_OF[row.workload]}", file=sys.stderr, flush=True)
            told = measure.make(row.make, work, self.log, self.options.timeout)
            if "failed" in told:
                failed[work.folder, row.make] = told["failed"]
            else:
                stamp.touch()
        return {
            row: failed[key] for row in rows if (key := (self.work(row).folder, row.make)) in failed
        }

    def rounds(
        self, rows: list[Contestant], failed: dict[Contestant, str]
    ) -> Iterator[dict[str, Any]]:
        """Yield a result of every contestant in every round.

        A contestant that fails does not run in later rounds.
        """
        for number in range(self.options.rounds):
            for row in rows:
                if row in failed:
                    continue
                result = measure.run(
                    row.enter,
                    self.work(row),
                    self.options.laps,
                    self.log,
                    self.options.timeout,
                    row.before,
                )
                if "failed" in result:
                    failed[row] = result["failed"]
                said = result.get("failed") or f"{max(result['rates']):,.0f}/s"
                print(
                    f"round {number + 1}: {row.workload} {row.filter} {row.name}: {said}",
                    file=sys.stderr,
                    flush=True,
                )
                yield {**row._asdict(), "round": number, **result}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", help="folder or tar of full-size JPEGs")
    parser.add_argument("--cifar", help="folder or tar of 32 x 32 images")
    parser.add_argument(
        "--work", default="outputs/bench", help="folder for made data; kept between runs"
    )
    parser.add_argument(
        "--results",
        default=str(Path(__file__).parent / "results"),
        help="folder for DATE-data.md and .json",
    )
    parser.add_argument("--rounds", type=int, help="5; 1 with --quick")
    parser.add_argument("--laps", type=int, default=3)
    parser.add_argument(
        "--workers",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="threads or processes of every contestant",
    )
    parser.add_argument("--workloads", default="ABCDEMPRS")
    parser.add_argument(
        "--only", action="append", help="contestants whose name contains this; may be repeated"
    )
    parser.add_argument(
        "--before", help="folder of another revision, compiled, whose rows run beside ours"
    )
    parser.add_argument("--images-count", type=int, default=NUM_IMAGES)
    parser.add_argument("--small-count", type=int, default=NUM_SMALL)
    parser.add_argument("--ragged-count", type=int, default=NUM_RAGGED)
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds one contestant may take"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the data, one round: to try it"
    )
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (1 if options.quick else 5)
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return 1 if a contestant's output differs from all others', else 0."""
    options = parse(arguments)
    bench = Bench(options)
    os.makedirs(options.work, exist_ok=True)
    absent = bench.make_data(set(options.workloads))
    rows = [
        row
        for row in contestants()
        if row.workload in options.workloads and row.workload not in absent
    ]
    if options.only:
        rows = [row for row in rows if any(word in row.name for word in options.only)]
    if options.before:
        rows = [each for row in rows for each in (row, *earlier(row, options.before))]
    failed = bench.make_formats(rows)
    results = list(bench.rounds(rows, failed))
    extra = packing(bench) if "P" in options.workloads and "P" not in absent else {}
    if "S" in options.workloads:
        extra["padding"] = told_by("padding", str(bench.counts["R"]))
    facts = {
        "command": " ".join([Path(sys.argv[0]).name, *(arguments or sys.argv[1:])]),
        **report.circumstances(),
    }
    facts |= {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "quick": options.quick,
        "workers": options.workers,
        "absent": absent,
    }
    facts |= {"counts": bench.counts, "rounds": options.rounds, "laps": options.laps}
    told = {
        "facts": facts,
        "results": results,
        "failed": [{**row._asdict(), "why": why} for row, why in failed.items()],
        **extra,
    }
    text, wrong = report.markdown(told, BASELINES)
    place = Path(options.results, f"{facts['date']}-data{'-quick' if options.quick else ''}")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.with_suffix(".json").write_text(json.dumps(told, indent=1))
    place.with_suffix(".md").write_text(text)
    print(text)
    return 1 if wrong else 0


def packing(bench: Bench) -> dict[str, Any]:
    """Return the results of packing and of pixel differences, measured in their own processes."""
    arguments = bench.folder("A"), str(bench.options.workers), str(bench.options.rounds)
    return {name: told_by(name, *arguments) for name in ("packing", "difference")}


def told_by(name: str, *arguments: str) -> dict[str, Any]:
    """Run the module ``peers.NAME`` in a process of its own. Return the JSON that it prints.

    If the process fails, the result has the reason as ``failed``.
    """
    print(f"{name} ...", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", f"peers.{name}", *arguments]
    environment = {**os.environ, "PYTHONPATH": measure.PATH}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip().rpartition("\n")[2]}
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
