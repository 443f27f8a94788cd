"""Measure what ``paceline watch`` costs a step, and whether its advice gains what it predicts.

    python benchmarks/watch.py [pairs] [milliseconds of a step]
    python benchmarks/watch.py gains

The cost is measured in pairs: two epochs of the same steps, with the hooks and without, in an order
that alternates. A step of a tiny model shows it in microseconds, and a step of the given length its
share. The gains are those of scripts in tests/commands/watch/scripts/, which run as they are and
with the advice, in turn.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from framework.commands.watch.torch_hooks import TorchHooks
from framework.measure.statistics import Pairs

RECORDS = 16
SCRIPTS = Path(__file__).parents[1] / "tests" / "commands" / "watch" / "scripts"
ROUNDS = 3
# A script, its words, the rule whose advice is followed, and the words that follow it.
CASES = (
    (
        "two_loaders.py",
        ["--rows", "800", "--delay", "0.004", "--workers", "0"],
        "more_workers",
        ["--workers", "2"],
    ),
)


def epoch_s(
    model: nn.Module,
    loader: DataLoader[Any],
    optimizer: torch.optim.Optimizer,
    burn: Callable[[], None],
) -> float:
    """Return the CPU seconds of the median step of an epoch, to which other programs add little."""
    times: list[float] = []
    criterion = nn.CrossEntropyLoss()
    iterator = iter(loader)
    start = time.thread_time()
    for inputs, labels in iterator:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        burn()
        now = time.thread_time()
        times.append(now - start)
        start = now
    return median(times)


def compare(num_pairs: int, step_ms: float, steps: int) -> Pairs:
    """Measure epochs without and with the hooks, in turn. Return both rates of each pair."""
    model = nn.Sequential(*[nn.Linear(32, 32) for _ in range(8)], nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = TensorDataset(torch.randn(RECORDS * steps, 32), torch.zeros(RECORDS * steps).long())
    loader = DataLoader(data, batch_size=RECORDS)
    hooks = TorchHooks(0, lambda: None)

    def burn() -> None:
        """Keep the CPU busy for ``step_ms``, so that a step takes as long as requested."""
        end = time.thread_time() + step_ms / 1e3
        while time.thread_time() < end:
            pass

    rates: tuple[list[float], list[float]] = ([], [])
    epoch_s(model, loader, optimizer, burn)
    for number in range(num_pairs):
        for side in (number % 2, 1 - number % 2):
            if side:
                hooks.install()
            rates[side].append(1 / epoch_s(model, loader, optimizer, burn))
            hooks.remove()
    return Pairs(tuple(rates[0]), tuple(rates[1]))


def watched(script: str, words: list[str]) -> dict[str, Any]:
    """Watch a script, and return all figures."""
    command = [sys.executable, "-m", "framework", "watch", "output=watch.json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command += [str(SCRIPTS / script), *words]
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return json.loads(Path("watch.json").read_text())


def gains() -> None:
    """Print what each advice was predicted to gain beside what it gained."""
    os.chdir(tempfile.mkdtemp(prefix="paceline-watch-"))
    for script, words, rule, changes in CASES:
        predicted: list[float] = []
        measured: list[float] = []
        for _ in range(ROUNDS):
            before = watched(script, words)
            after = watched(script, [*words, *changes])
            verdicts = {verdict["rule"]: verdict["gain"] for verdict in before["verdicts"]}
            predicted.append(verdicts[rule])
            measured.append(after["records_per_s"] / before["records_per_s"])
        figures = f"predicted {median(predicted):.2f} times, measured {median(measured):.2f} times"
        print(f"{script:16} {rule:14} {figures}", flush=True)


def main() -> None:
    if sys.argv[1:] == ["gains"]:
        gains()
        return
    torch.set_num_threads(1)
    num_pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    step_ms = float(sys.argv[2]) if len(sys.argv) > 2 else 5.0
    tiny = compare(num_pairs, 0.0, 100)
    costs_us = [
        1e6 * (1 / after - 1 / before) for before, after in zip(*vars(tiny).values(), strict=False)
    ]
    print(f"a tiny step takes {1e6 / median(tiny.before):.0f} us")
    print(f"its hooks take {median(costs_us):.1f} us, the median of {num_pairs} pairs")
    whole = compare(num_pairs, max(0.0, step_ms - 1e3 / median(tiny.before)), 40)
    share = 100 * (1 / whole.gain - 1)
    low, high = (100 * (1 / ratio - 1) for ratio in reversed(whole.quartiles))
    print(f"a step takes {1e3 / median(whole.before):.2f} ms")
    print(f"its hooks take {share:.2f} % of it (quartiles {low:.2f} to {high:.2f} %)")


if __name__ == "__main__":
    main()
