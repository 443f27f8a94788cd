"""Compare two ranks on two cores with one rank on one core, and forecast many ranks with a model.

    python benchmarks/scaling.py [--rounds 5] [--steps 12] [--words WORD ...]

All sides run ``paceline train`` with ``--words``, and take turns in alternating order. Each rank
has ``rank_batch_size`` records of made-up images in memory, so that only computing and exchanging
take time. The speed-up compares records per second. A step of two ranks takes longer because of the
exchange, and the spans show where.

The model is a ring all-reduce of the gradients in buckets. The first bucket must wait for its
gradients, and nothing hides the last one. A bucket takes
t = 2 (n - 1) / n * bytes / bandwidth + 2 (n - 1) * latency over the slowest link of the ring.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from framework.measure.statistics import median, quartiles

WORDS = [
    "recipes=cifar10",
    "data=synthetic",
    "data.source.image_shape=[3,32,32]",
    "data.source.num_records=40000",
    "rank_batch_size=128",
    "precision=fp32",
    "sink=[]",
    "data.val=null",
]
LINKS = {
    "10 Gbit/s Ethernet": (1.25e9, 50e-6),
    "100 Gbit/s Ethernet": (12.5e9, 10e-6),
    "400 Gbit/s a GPU": (50e9, 5e-6),
}  # bytes/s, s


def run(words: list[str], cores: str, folder: Path) -> dict:
    """Train on these cores, and return the summary of the run."""
    command = [
        "taskset",
        "-c",
        cores,
        sys.executable,
        "-m",
        "framework",
        "train",
        *words,
        f"hydra.run.dir={folder}",
    ]
    done = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads((folder / "summary.json").read_text())


def ring_s(ranks: int, num_bytes: float, bandwidth: float, latency: float) -> float:
    """Return the seconds of a ring all-reduce."""
    return 2 * (ranks - 1) / ranks * num_bytes / bandwidth + 2 * (ranks - 1) * latency


def efficiency(
    ranks: int,
    step_s: float,
    backward_s: float,
    num_bytes: float,
    bucket_bytes: float,
    link: tuple[float, float],
) -> float:
    """Return the seconds of a step alone over those of a step with ``ranks`` ranks.

    The model assumes that buckets become ready evenly over backward. Each is sent as soon as it is
    ready and the link is free.
    """
    num_buckets = max(1, round(num_bytes / bucket_bytes))
    free_at = 0.0
    for bucket in range(1, num_buckets + 1):
        ready_at = step_s - backward_s + backward_s * bucket / num_buckets
        free_at = max(free_at, ready_at) + ring_s(ranks, num_bytes / num_buckets, *link)
    return step_s / max(step_s, free_at)


def ratios_of(ran: dict[str, dict]) -> dict[str, float]:
    """Return the records per second of each other side over those of one rank."""
    return {
        side: summary["records_per_s"] / ran["one"]["records_per_s"]
        for side, summary in ran.items()
        if side != "one"
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument(
        "--megabytes",
        type=float,
        default=26.3,
        help="of gradients: the recipe's ResNet-9 has 6.6 million weights",
    )
    parser.add_argument("--words", nargs="+", default=WORDS)
    options = parser.parse_args()
    words = [*options.words, f"max_steps={options.steps}", "epochs=1000"]
    ranks = ["parallel=ddp", "parallel.num_processes=2"]
    sides = {
        "one": (words, "0"),
        "two": ([*words, *ranks, "parallel.sync_batch_norm=false"], "0,1"),
        "two with batch norm over both": ([*words, *ranks], "0,1"),
    }
    rounds: list[dict[str, dict]] = []
    for number in range(options.rounds + 1):
        order = list(sides) if number % 2 else list(sides)[::-1]
        with tempfile.TemporaryDirectory() as folder:
            ran = {side: run(*sides[side], Path(folder, side)) for side in order}
        if number:  # the first is burn-in
            rounds.append(ran)
            ratios = ", ".join(f"{side} {ratio:.3f}" for side, ratio in ratios_of(ran).items())
            print(f"{number}: {ratios}", flush=True)
    for side in list(sides)[1:]:
        low, middle, high = quartiles([ratios_of(ran)[side] for ran in rounds])
        print(
            f"speed-up of {side}, on two cores: {middle:.3f} "
            f"(quartiles {low:.3f}, {high:.3f}, {len(rounds)} rounds)"
        )
    spans_ms = {
        name: [1e3 * median(ran[side]["spans"][name]["mean_s"] for ran in rounds) for side in sides]
        for name in ("wait", "forward", "backward", "optimizer", "report")
    }
    print(f"| span, ms a step | {' | '.join(sides)} |\n| --- | --- | --- | --- |")
    for name, values in spans_ms.items():
        print(f"| {name} | {' | '.join(f'{value:.1f}' for value in values)} |")
    step_s, backward_s = (
        sum(alone for alone, *_ in spans_ms.values()) / 1e3,
        spans_ms["backward"][0] / 1e3,
    )
    for shrink, what in ((1, "this step"), (1000, "a step a thousand times as fast")):
        print(
            f"\n{what}: {1e3 * step_s / shrink:.2f} ms, "
            f"{options.megabytes:g} MB of gradients in buckets of 25 MB\n"
        )
        print("| link | 8 | 64 | 1,024 ranks |\n| --- | --- | --- | --- |")
        for name, link in LINKS.items():
            shares = [
                efficiency(
                    ranks, step_s / shrink, backward_s / shrink, 1e6 * options.megabytes, 25e6, link
                )
                for ranks in (8, 64, 1024)
            ]
            print(f"| {name} | {' | '.join(f'{share:.3f}' for share in shares)} |")


if __name__ == "__main__":
    main()
