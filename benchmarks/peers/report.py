"""Turn results into a report in Markdown.

Its tables show medians and spreads, ratios inside a round, and the goals. It also names the
contestants that failed or whose output is wrong.
"""

import importlib.metadata
import statistics
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch",
    "numpy",
    "simplejpeg",
    "opencv-python-headless",
    "pillow",
    "h5py",
    "lmdb",
    "nvidia-dali-cuda120",
    "ffcv",
)
PACKAGES += ("litdata", "webdataset", "mosaicml-streaming", "prefetch_generator", "spdl-io")
SHAPES = {
    "A": [3, 224, 224],
    "B": [3, 224, 224],
    "C": [3, 224, 224],
    "D": [3, 32, 32],
    "E": [3, 32, 32],
    "M": [3, 224, 224],
    "R": [],
}
# How far the means of two sets of random crops may differ, times the square root of their number.
CROP_MEAN = 130.0
MEAN_TOLERANCE = {"D": 1e-6, "E": 0.02, "R": 1e-6}
TITLES = {
    "A": "A: full-size JPEG files, random-resized crop 224, flip; batches of 64, uint8 NCHW",
    "B": "B: the same, prepared (shorter side 256, JPEG quality 90)",
    "C": "C: the same, raw (the middle 256 x 256 pixels)",
    "D": "D: raw 32 x 32, shuffled; batches of 256, uint8 NCHW",
    "E": "E: D with flip, pad-4 crop, normalized float32 NCHW",
    "M": "M: B with masks and boxes through one random-resized crop 224 and flip; batches of 64",
    "R": "R: 1 to 1,000 float32 a record, shuffled; batches of 256, one record after another",
}
# Workload, filter, our contestant, the other or "best peer", at least so many times as fast.
GOALS = [
    *(
        ("A", f, "paceline hdf5", "a thread per core, no framework", 0.95)
        for f in ("antialiased", "linear")
    ),
    *(("A", f, "paceline hdf5", "best peer", 1.25) for f in ("antialiased", "linear")),
    *(
        ("B", f, "paceline hdf5", "a thread per core, no framework", 0.92)
        for f in ("antialiased", "linear")
    ),
    *(("B", f, "paceline hdf5", "best peer", 1.25) for f in ("antialiased", "linear")),
    *(
        ("C", f, "paceline hdf5", "a thread per core, no framework", 0.75)
        for f in ("antialiased", "linear")
    ),
    ("C", "antialiased", "paceline hdf5", "ffcv raw, longer side 400", 1.6),
    ("C", "antialiased", "paceline hdf5", "best peer", 1.0),
    ("C", "linear", "paceline hdf5", "best peer", 1.0),
    ("D", "-", "paceline hdf5", "memcpy", 0.7),
    ("D", "-", "paceline hdf5", "ffcv raw", 3.0),
    ("D", "-", "paceline lmdb", "ffcv raw", 1.5),
    ("E", "-", "paceline hdf5 + crop_flip", "best peer", 1.5),
    ("A", "antialiased", "paceline dataset + Pillow", "DataLoader + Pillow", 1.0),
    ("A", "antialiased", "paceline dataset + Pillow, threads", "DataLoader + Pillow", 1.3),
    *(("A", f, "paceline tar", "webdataset + simplejpeg", 1.4) for f in ("antialiased", "linear")),
    ("M", "linear", "paceline hdf5", "DataLoader + Albumentations", 1.5),
    ("R", "-", "paceline hdf5", "HDF5 of variable length, by batch", 5.0),
    ("R", "-", "paceline hdf5", "litdata", 2.0),
    ("R", "-", "paceline lmdb", "litdata", 2.0),
    *((w, "antialiased", "paceline hdf5, verify=always", "paceline hdf5", 0.95) for w in "AB"),
]
MOST_PADDING = 0.05  # S's goal
FIRST_S, MEMORY_BYTES, LMDB_RATE = 0.3, 400e6, 2e6  # F's and D's goals in plain numbers

Key = tuple[str, str, str]  # workload, filter, name


def circumstances() -> dict[str, Any]:
    """Return the machine, the versions and the commit.

    Call this after the measurements, because it imports torch.
    """
    from framework.measure.host import machine

    versions: dict[str, str] = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {"machine": machine(), "versions": versions, "commit": commit}


class Table:
    """The results by contestant. The rate of a round is the median of its laps."""

    def __init__(self, results: list[dict[str, Any]]) -> None:
        self.rows: dict[Key, dict[int, dict[str, Any]]] = defaultdict(dict)
        self.roles: dict[Key, str] = {}
        for result in results:
            if "failed" not in result:
                key = result["workload"], result["filter"], result["name"]
                self.rows[key][result["round"]] = result
                self.roles[key] = result["role"]

    def laps(self, key: Key) -> list[float]:
        return [rate for result in self.rows[key].values() for rate in result["rates"]]

    def by_round(self, key: Key) -> dict[int, float]:
        return {
            number: statistics.median(result["rates"])
            for number, result in self.rows.get(key, {}).items()
        }

    def best_peer(self, workload: str, filter_: str) -> tuple[str, dict[int, float]]:
        """Return the best peer's name, and the rate of the fastest peer in each round.

        The best peer has the highest median of all laps. Another peer may be faster in a round.
        """
        peers = [
            key
            for key, role in self.roles.items()
            if key[:2] == (workload, filter_) and role == "peer"
        ]
        rates: dict[int, float] = {}
        for key in peers:
            for number, rate in self.by_round(key).items():
                rates[number] = max(rates.get(number, 0.0), rate)
        name = max(
            peers, key=lambda key: statistics.median(self.laps(key)), default=("", "", "none")
        )[2]
        return name, rates

    def ratio(self, mine: dict[int, float], other: dict[int, float]) -> float | None:
        """Return the median of the rounds' ratios mine / other, or None if they share no round."""
        shared = sorted(mine.keys() & other.keys())
        return statistics.median(mine[n] / other[n] for n in shared) if shared else None

    def worst(self, key: Key, name: str) -> float:
        return max(result[name] for result in self.rows[key].values())

    def middle(self, key: Key, name: str) -> float:
        return statistics.median(result[name] for result in self.rows[key].values())


def wrong_output(table: Table, counts: dict[str, int]) -> dict[Key, str]:
    """Return the contestants whose checked epoch is wrong, with the reason.

    An epoch must have every record once, shuffled, in the workload's shape and type, and its mean
    must be close to ours.
    """
    wrong: dict[Key, str] = {}
    for key, rounds in table.rows.items():
        workload, filter_, _ = key
        if table.roles[key] == "bound":
            continue
        ours = [k for k in table.rows if k[:2] == (workload, filter_) and table.roles[k] == "ours"]
        mean = table.middle(ours[0], "mean") if ours else None
        for result in rounds.values():
            if reason := _wrong(
                result, workload, counts["D" if workload == "E" else workload], mean
            ):
                wrong[key] = reason
    return wrong


def _wrong(result: dict[str, Any], workload: str, count: int, mean: float | None) -> str:
    """Return what is wrong with a result, or ""."""
    if (result["records"], result["distinct"]) != (count, count):
        return f"{result['records']} records, {result['distinct']} distinct, of {count}"
    if not result["shuffled"]:
        return "not shuffled"
    dtype = "torch.float32" if workload in "ER" else "torch.uint8"
    if result["shape"][1:] != SHAPES[workload] or result["dtype"] != dtype:
        return f"batches {result['shape']} of {result['dtype']}"
    if mean is not None and abs(result["mean"] - mean) > MEAN_TOLERANCE.get(
        workload, CROP_MEAN / count**0.5
    ):
        return f"mean {result['mean']:.3f}, ours {mean:.3f}"
    return ""


def markdown(told: dict[str, Any], baselines: dict[str, str]) -> tuple[str, dict[Key, str]]:
    """Return the report, and the contestants whose output is wrong."""
    table, facts = Table(told["results"]), told["facts"]
    wrong = wrong_output(table, facts["counts"])
    parts = [_head(facts)]
    parts += [
        _workload(table, workload, baselines[workload], wrong)
        for workload in "ABCDEMR"
        if any(k[0] == workload for k in table.rows)
    ]
    parts += [
        _goals(table),
        _start(table),
        _packing(told.get("packing")),
        _difference(told.get("difference")),
        _padding(told.get("padding")),
    ]
    parts += [_failed(told["failed"], facts["absent"], wrong)]
    return "\n\n".join(part for part in parts if part) + "\n", wrong


def _head(facts: dict[str, Any]) -> str:
    machine = facts["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    quick = (
        " **Quick: a tenth of the data, to try the script; no figures to quote.**"
        if facts["quick"]
        else ""
    )
    return (
        f"# Reading beside the peers, {facts['date']}\n\n"
        f"`{facts['command']}` at {facts['commit']}.{quick}\n\n"
        f"{machine['num_cores']} cores of {machine['processor']}, "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB, {machine['platform']}; "
        f"{facts['workers']} threads or processes each; "
        f"{facts['rounds']} rounds of {facts['laps']} laps after a checked warm-up epoch; "
        f"records: {facts['counts']}; page cache warm.\n\n{versions}.\n\n"
        "Records per second: median (min .. max) of all laps. Ratios are taken inside a round; "
        "their median is shown. Rows are compared inside one resize filter. Memory: proportional "
        "set size of the whole process tree at its highest in the warm-up epoch, beyond what "
        "`import torch` had taken; it counts mapped pages of the page cache too. First: seconds "
        "from the end of the imports to the first batch."
    )


def _workload(table: Table, workload: str, baseline: str, wrong: dict[Key, str]) -> str:
    lines = [
        f"## {TITLES[workload]}",
        "",
        (
            f"| contestant | filter | records/s | x {baseline} | x best peer of the filter "
            "| first, s | memory, MB |"
        ),
    ]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    base = next(
        (table.by_round(key) for key in table.rows if key[0] == workload and key[2] == baseline), {}
    )
    keys = [key for key in table.rows if key[0] == workload]
    for key in sorted(keys, key=lambda k: (k[1], -statistics.median(table.laps(k)))):
        laps, mine = table.laps(key), table.by_round(key)
        best = table.best_peer(workload, key[1])[1]
        name = {"ours": f"**{key[2]}**", "bound": f"_bound: {key[2]}_"}.get(
            table.roles[key], key[2]
        ) + (" (!)" if key in wrong else "")
        rate = f"{statistics.median(laps):,.0f} ({min(laps):,.0f} .. {max(laps):,.0f})"
        bound = table.roles[key] == "bound"
        start = "" if bound else f"{table.middle(key, 'first_s'):.2f}"
        memory = "" if bound else f"{table.worst(key, 'memory_bytes') / 1e6:,.0f}"
        lines.append(
            f"| {name} | {key[1]} | {rate} | {_times(table.ratio(mine, base))} "
            f"| {_times(table.ratio(mine, best))} | {start} | {memory} |"
        )
    return "\n".join(lines)


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _goals(table: Table) -> str:
    lines = [
        "## What was to be reached",
        "",
        "| workload | filter | ours | beside | found | wanted | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for workload, filter_, ours, other, wanted in GOALS:
        mine = table.by_round((workload, filter_, ours))
        name, rates = (
            table.best_peer(workload, filter_)
            if other == "best peer"
            else (other, table.by_round((workload, filter_, other)))
        )
        ratio = table.ratio(mine, rates)
        if ratio is not None:
            label = f"best peer ({name})" if other == "best peer" else name
            lines.append(
                f"| {workload} | {filter_} | {ours} | {label} | {ratio:.2f} x | {wanted} x "
                f"| {_verdict(ratio >= wanted)} |"
            )
    if (
        laps := table.laps(("D", "-", "paceline lmdb"))
        if ("D", "-", "paceline lmdb") in table.rows
        else []
    ):
        rate = statistics.median(laps)
        lines.append(
            f"| D | - | paceline lmdb | | {rate:,.0f}/s | {LMDB_RATE:,.0f}/s "
            f"| {_verdict(rate >= LMDB_RATE)} |"
        )
    for key in (
        key
        for key in table.rows
        if key[0] == "A" and table.roles[key] == "ours" and "verify" not in key[2]
    ):
        first, memory = table.middle(key, "first_s"), table.worst(key, "memory_bytes")
        lines.append(
            f"| F | {key[1]} | {key[2]} | first batch | {first:.2f} s | {FIRST_S} s "
            f"| {_verdict(first <= FIRST_S)} |"
        )
        lines.append(
            f"| F | {key[1]} | {key[2]} | memory | {memory / 1e6:.0f} MB "
            f"| {MEMORY_BYTES / 1e6:.0f} MB | {_verdict(memory <= MEMORY_BYTES)} |"
        )
    return "\n".join(lines) if len(lines) > 4 else ""


def _verdict(reached: bool) -> str:
    return "reached" if reached else "**not reached**"


def _start(table: Table) -> str:
    """Return the section of workload F, which shows figures of A."""
    keys = [key for key in table.rows if key[0] == "A" and table.roles[key] != "bound"]
    if not keys:
        return ""
    lines = [
        "## F: start and memory on A",
        "",
        (
            "| contestant | filter | torch and imports, s | first batch after them, s "
            "| memory, MB | grown in the timed laps, MB |"
        ),
    ]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for key in sorted(keys, key=lambda k: table.middle(k, "first_s")):
        grown = statistics.median(
            result["done_bytes"] - result["warm_bytes"] for result in table.rows[key].values()
        )
        lines.append(
            f"| {key[2]} | {key[1]} | {table.middle(key, 'imports_s'):.2f} "
            f"| {table.middle(key, 'first_s'):.2f} "
            f"| {table.worst(key, 'memory_bytes') / 1e6:,.0f} | {grown / 1e6:+,.0f} |"
        )
    return "\n".join(lines)


def _packing(measured: dict[str, Any] | None) -> str:
    if not measured:
        return ""
    if "failed" in measured:
        return f"## Packing\n\nNot measured: {measured['failed']}"
    lines = ["## P: packing the files of A into LMDB, shorter side 256, JPEG quality 90", ""]
    lines += [
        (
            "| packer | whole command, s | the same on 2 images, s | images/s beyond that "
            "| ratio | bytes |"
        ),
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in measured["rows"]:
        spread = f"{row['rate']:,.0f} ({row['least']:,.0f} .. {row['most']:,.0f})"
        lines.append(
            f"| {row['name']} | {row['whole_s']:.2f} | {row['start_s']:.2f} | {spread} "
            f"| {row['ratio']:.2f} | {row['bytes']:,} |"
        )
    note = (
        "Ratio: of whole commands less their start, to the plain loop's in the same round; "
        "1.5 was to be reached."
    )
    return "\n".join([*lines, "", note])


def _difference(measured: dict[str, Any] | None) -> str:
    if not measured:
        return ""
    if "failed" in measured:
        return f"## Pixels beside Pillow's\n\nNot measured: {measured['failed']}"
    lines = [
        "## Pixels beside Pillow's antialiased bilinear",
        "",
        f"{measured['images']} images of A, the same windows, levels of 0 .. 255.",
        "",
    ]
    lines += [
        "| ours | windows | mean difference | 99.9 % below | largest |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in measured["rows"]:
        lines.append(
            f"| {row['filter']} | {row['windows']} | {row['mean']:.2f} | {row['p999']:.0f} "
            f"| {row['largest']} |"
        )
    return "\n".join(lines)


def _padding(measured: dict[str, Any] | None) -> str:
    if not measured:
        return ""
    if "failed" in measured:
        return f"## Padding\n\nNot measured: {measured['failed']}"
    lines = [
        (
            f"## S: padding of {measured['records']:,} records with lengths as of speech; "
            "batches of 64"
        ),
        "",
        f"At most {MOST_PADDING:.0%} was to be reached with buckets.",
        "",
        "| order | padding | records/s |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| {row['order']} | {row['padding']:.1%} | {row['rate']:,.0f} |"
        for row in measured["rows"]
    ]
    return "\n".join(lines)


def _failed(failed: list[dict[str, Any]], absent: dict[str, str], wrong: dict[Key, str]) -> str:
    lines = [f"- {workload}: not run, {why}" for workload, why in absent.items()]
    lines += [
        f"- {row['workload']}, {row['filter']}, {row['name']}: {row['why']}" for row in failed
    ]
    lines += [
        f"- {' '.join(key)} (!): its output is not the others': {why}" for key, why in wrong.items()
    ]
    return "\n".join(["## Not compared", "", *lines]) if lines else ""
