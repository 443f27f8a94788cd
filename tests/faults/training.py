"""Kill a training, in many ways and at any moment, go on with ``resume=``, and compare every bit with a run that nobody disturbed.

The model draws from all generators; each time it goes on with another store, loader and number of workers.
"""

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import framework.system.durable
from framework.train.checkpoint import Damaged, newest_path, read_state
from tests.cli.command import Done
from tests.faults.forked import Command, paceline

RUN = "run"
PRECISIONS = {
    "fp32": ["precision=fp32"],
    "bf16": ["precision=amp"],
    "fp16": ["precision=amp", "precision.dtype=fp16"],
}
WAYS = [
    [f"data={data}", f"loader={loader}", f"workers.num={num}"]
    for data in ("hdf5", "lmdb")
    for loader in ("plain", "prefetch")
    for num in (0, 2)
]
COMMON = [
    *(
        "model._target_=tests.faults.net.Net",
        "model.width=16",
        "allow_targets=[tests]",
        "ema_decay=0.9",
    ),
    *("epochs=3", "batch_size=96", "report_every=3", "checkpoint.every_steps=4", "sink=[jsonl]"),
]
POINTS = (
    *(
        "publish.opened",
        "publish.written",
        "publish.synced",
        "publish.renamed",
        "publish.published",
    ),
    *("checkpoint.writing", "checkpoint.weights", "checkpoint.removed"),
)


class Place(NamedTuple):
    """Where the stores are, and how undisturbed runs end: per precision (or ``ddp``) the log, the state, and the seconds it took."""

    dataset: str
    ends: dict[str, tuple[list, dict[str, Any], float]]


def words(place_dataset: str, precision: str, way: list[str]) -> list[str]:
    return [
        "train",
        *COMMON,
        *PRECISIONS[precision],
        *way,
        "recipes=digits",
        f"dataset={place_dataset}",
    ]


def make_place(folder: Path, precisions: tuple[str, ...] = tuple(PRECISIONS)) -> Place:
    """Pack the digits and run every precision once, undisturbed."""
    dataset = str(folder / "digits")
    for data in ("hdf5", "lmdb"):
        good(
            paceline(
                "train",
                f"data={data}",
                "recipes=digits",
                f"dataset={dataset}",
                "max_steps=1",
                f"hydra.run.dir={folder / data}",
            )
        )
    ends = {}
    for precision in precisions:
        start = time.perf_counter()
        good(paceline(*words(dataset, precision, WAYS[0]), f"hydra.run.dir={folder / precision}"))
        ends[precision] = (*end_of(folder / precision), time.perf_counter() - start)
    return Place(dataset, ends)


def good(done: Done) -> None:
    assert done.code == 0, f"exit code {done.code}: {done.err[-500:]}"


def end_of(run_dir: Path) -> tuple[list, dict[str, Any]]:
    """(what the log says that is no measurement, the newest state)."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    log = [
        (line["split"], line["step"], line["loss"].hex(), line["accuracy"].hex(), line["lr"].hex())
        for line in lines
    ]
    path = newest_path(run_dir)
    assert path is not None
    return log, read_state(path)


def difference(place: Place, key: str) -> str:
    """ "" where the run ended like the undisturbed one, and left nothing behind."""
    log, state = end_of(Path(RUN))
    expected, whole, _ = place.ends[key]
    if log != expected:
        return "another log"
    names = [name for name in whole if not same(state[name], whole[name])]
    names = [name for name in names if name != "trained_s"]  # which no two runs share
    left = sorted(
        {
            path.name
            for path in Path(RUN).rglob("*")
            if ".tmp." in path.name or path.name in ("run.lock", "run.next.json")
        }
    )
    weights = Path(RUN, "checkpoints/last.pt")
    kept = torch.load(weights, weights_only=True)
    names += [] if same(kept, state["average"]) else ["last.pt"]
    return f"{names} differ, {left} left behind" if names or left else ""


def same(one: Any, other: Any) -> bool:
    """Bit by bit."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and one.dtype == other.dtype
            and torch.equal(one.view(-1), other.view(-1))
        )
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same(one[key], other[key]) for key in one)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def go_on(place: Place, precision: str, draw: random.Random) -> list[str]:
    """The words of the next start: from the newest state, in a way of its own, or anew where nothing was saved yet."""
    way = draw.choice(WAYS)
    if newest_path(Path(RUN)) is not None:
        return ["train", f"resume={RUN}", "allow_targets=[tests]", *way]
    shutil.rmtree(RUN, ignore_errors=True)
    return [*words(place.dataset, precision, way), f"hydra.run.dir={RUN}"]


def torn() -> list[str]:
    """States under their own names that are not whole."""
    found = []
    for path in Path(RUN).glob("checkpoints/step-*.pt"):
        try:
            read_state(path)
        except Damaged as error:
            found.append(f"{path.name}: {error}")
    return found


def killed_at_random(place: Place, draw: random.Random) -> str:
    """kill -9 at a moment of one of its lives, once; then to its end."""
    precision = draw.choice([*PRECISIONS])
    moment_s = draw.uniform(0.1, 1.05 * place.ends[precision][2])
    for _ in range(
        draw.randint(0, 1)
    ):  # a first life that was killed before: the second goes on from the middle
        with Command(*go_on(place, precision, draw)) as command:
            command.process.join(draw.uniform(0.3, 1.0) * place.ends[precision][2])
    with Command(*go_on(place, precision, draw)) as command:
        command.process.join(moment_s)
    if found := torn():
        return f"torn: {found}"
    good(paceline(*go_on(place, precision, draw)))
    return difference(place, precision)


def die_at(point: str, count: int) -> Callable[[], None]:
    """To be run in the process that is to die: kill -9 when ``point`` is reached for the ``count``-th time."""
    left = [count]

    def reached(name: str) -> None:
        left[0] -= name == point
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return lambda: setattr(framework.system.durable, "_reached", reached)


def killed_while_saving(place: Place, point: str, draw: random.Random) -> str:
    """kill -9 at one named point of a save."""
    precision = draw.choice([*PRECISIONS])
    with Command(
        *go_on(place, precision, draw), before=die_at(point, draw.randint(1, 12))
    ) as command:
        code = command.wait().code
    if code not in (-signal.SIGKILL, 0):
        return f"exit code {code}"
    if found := torn():
        return f"torn: {found}"
    good(paceline(*go_on(place, precision, draw)))
    return difference(place, precision)


def told_to_stop(place: Place, draw: random.Random) -> str:
    """SIGTERM or SIGUSR1 at a random moment: either the state of the last step is saved, or there was none to save."""
    precision, number = draw.choice([*PRECISIONS]), draw.choice((signal.SIGTERM, signal.SIGUSR1))
    with Command(*go_on(place, precision, draw)) as command:
        time.sleep(draw.uniform(0, place.ends[precision][2]))
        os.kill(command.pid, number)
        done = command.wait()
    path = newest_path(Path(RUN))
    if done.code == 75:
        said = json.loads(Path(RUN, "exit.json").read_text())
        if (
            path is None
            or read_state(path)["progress"]["step"] != said["step"]
            or said["checkpoint"] != f"checkpoints/{path.name}"
        ):
            return f"exit.json says {said}, the newest state is {path}"
    elif done.code == 143:
        if path is not None:
            return "143, though there was a state to save"
    elif done.code != 0:
        return f"exit code {done.code}: {done.err[-300:]}"
    good(paceline(*go_on(place, precision, draw)))
    return difference(place, precision)
