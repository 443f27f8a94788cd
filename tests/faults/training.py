"""Kill a training in any way and resume it in another way: every bit must be the same."""

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

import framework.system.durable
from framework.system.durable import is_alive
from framework.system.stopping import children_of, command_of
from framework.train.checkpoint import Damaged, newest_path, read_state, save_state
from tests.cli.command import Done
from tests.faults.forked import Command, paceline, wait_for

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
    *("model._target_=tests.faults.net.Net", "model.width=16", "allow_targets=[tests]"),
    *("ema_decay=0.9", "epochs=3", "batch_size=96", "report_every=3", "checkpoint.every_steps=4"),
    "sink=[jsonl]",
]
POINTS = (
    *("publish.opened", "publish.written", "publish.synced", "publish.renamed"),
    *("publish.published", "checkpoint.writing", "checkpoint.weights", "checkpoint.removed"),
)
ROOT = Path(__file__).parents[2]
DDP = ["parallel=ddp", "parallel.num_processes=2"]
DOWN_S = 15.0


class Place(NamedTuple):
    """The stores, and the ends of undisturbed runs.

    Attributes:
        dataset: Where the stores are.
        ends: The log, the state and the duration in seconds, by precision or ``ddp``.
    """

    dataset: str
    ends: dict[str, tuple[list, dict[str, Any], float]]


def words(place_dataset: str, precision: str, way: list[str]) -> list[str]:
    data = ["recipes=digits", f"dataset={place_dataset}"]
    return ["train", *COMMON, *PRECISIONS[precision], *way, *data]


def make_place(folder: Path, precisions: tuple[str, ...] = tuple(PRECISIONS)) -> Place:
    """Pack the digits and run every precision once, undisturbed."""
    dataset = str(folder / "digits")
    for data in ("hdf5", "lmdb"):
        packed = ["train", f"data={data}", "recipes=digits", f"dataset={dataset}", "max_steps=1"]
        good(paceline(*packed, f"hydra.run.dir={folder / data}"))
    ends = {}
    for precision in precisions:
        start = time.perf_counter()
        good(paceline(*words(dataset, precision, WAYS[0]), f"hydra.run.dir={folder / precision}"))
        ends[precision] = (*end_of(folder / precision), time.perf_counter() - start)
    return Place(dataset, ends)


def precisions_of(place: Place) -> list[str]:
    return [precision for precision in PRECISIONS if precision in place.ends]


def good(done: Done) -> None:
    assert done.code == 0, f"exit code {done.code}: {done.err[-500:]}"


def end_of(run_dir: Path) -> tuple[list, dict[str, Any]]:
    """Return the log without its measurements, and the newest state."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    log = [
        (line["split"], line["step"], line["loss"].hex(), line["accuracy"].hex(), line["lr"].hex())
        for line in lines
    ]
    path = newest_path(run_dir)
    assert path is not None
    return log, read_state(path)


def difference(place: Place, key: str) -> str:
    """Return how the run differs from the undisturbed one, and what it left behind, or ""."""
    log, state = end_of(Path(RUN))
    expected, whole, _ = place.ends[key]
    if log != expected:
        return "another log"
    names = [name for name in whole if not same(state[name], whole[name])]
    names = [name for name in names if name != "trained_s"]  # which no two runs share
    places = {path.name for path in Path(RUN).rglob("*")}
    left = sorted(n for n in places if ".tmp." in n or n in ("run.lock", "run.next.json"))
    weights = Path(RUN, "checkpoints/last.pt")
    kept = torch.load(weights, weights_only=True)
    names += [] if same(kept, state["average"]) else ["last.pt"]
    return f"{names} differ, {left} left behind" if names or left else ""


def same(first: Any, second: Any) -> bool:
    """Return whether two values are equal bit by bit."""
    if type(first) is not type(second):
        return False
    if isinstance(first, torch.Tensor):
        return first.dtype == second.dtype and torch.equal(first.view(-1), second.view(-1))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


def next_start(place: Place, precision: str, draw: random.Random) -> list[str]:
    """Return a drawn command that resumes the newest state or, without one, starts a new run."""
    way = draw.choice(WAYS)
    if newest_path(Path(RUN)) is not None:
        return ["train", f"resume={RUN}", "allow_targets=[tests]", *way]
    shutil.rmtree(RUN, ignore_errors=True)
    return [*words(place.dataset, precision, way), f"hydra.run.dir={RUN}"]


def torn() -> str:
    """Return the saved states that are not whole, with the reasons, or ""."""
    damaged = []
    for path in Path(RUN).glob("checkpoints/step-*.pt"):
        try:
            read_state(path)
        except Damaged as error:
            damaged.append(f"{path.name}: {error}")
    return f"torn: {damaged}" if damaged else ""


def killed_at_random(place: Place, draw: random.Random) -> str:
    """Kill a run with SIGKILL at a random moment, then resume it to its end."""
    precision = draw.choice(precisions_of(place))
    moment_s = draw.uniform(0.1, 1.05 * place.ends[precision][2])
    # perhaps a first run that is killed earlier, so that the next one starts in the middle
    for _ in range(draw.randint(0, 1)):
        with Command(*next_start(place, precision, draw)) as command:
            command.process.join(draw.uniform(0.3, 1.0) * place.ends[precision][2])
    with Command(*next_start(place, precision, draw)) as command:
        command.process.join(moment_s)
    return torn() or resumed(place, precision, draw)


def resumed(place: Place, precision: str, draw: random.Random) -> str:
    """Resume the run to its end. Return how it differs from the undisturbed one, or ""."""
    good(paceline(*next_start(place, precision, draw)))
    return difference(place, precision)


def die_at(point: str, count: int) -> Callable[[], None]:
    """Return a function: SIGKILL to its process when it reaches ``point`` for that time."""
    left = [count]

    def reached(name: str) -> None:
        left[0] -= name == point
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return lambda: setattr(framework.system.durable, "_reached", reached)


def killed_while_saving(place: Place, point: str, draw: random.Random) -> str:
    """Kill a run with SIGKILL at one named point of a save."""
    precision = draw.choice(precisions_of(place))
    with Command(
        *next_start(place, precision, draw), before=die_at(point, draw.randint(1, 12))
    ) as command:
        code = command.wait().code
    if code not in (-signal.SIGKILL, 0):
        return f"exit code {code}"
    return torn() or resumed(place, precision, draw)


def stopped_by_signal(place: Place, draw: random.Random) -> str:
    """Stop a run by a random signal: it must save the state of its last step, if any."""
    precision = draw.choice(precisions_of(place))
    number = draw.choice((signal.SIGTERM, signal.SIGUSR1))
    with Command(*next_start(place, precision, draw)) as command:
        time.sleep(draw.uniform(0, place.ends[precision][2]))
        os.kill(command.pid, number)
        done = command.wait()
    path = newest_path(Path(RUN))
    if done.code == 75:
        outcome = json.loads(Path(RUN, "exit.json").read_text())
        state = path and (read_state(path)["progress"]["step"], f"checkpoints/{path.name}")
        if state != (outcome["step"], outcome["checkpoint"]):
            return f"exit.json says {outcome}, the newest state is {path}"
    elif done.code == 143:
        if path is not None:
            return "143, though there was a state to save"
    elif done.code != 0:
        return f"exit code {done.code}: {done.err[-300:]}"
    return resumed(place, precision, draw)


# ------------------------------------------------------------------------------- two ranks


def with_ranks(place: Place, folder: Path) -> Place:
    """Return the place with the end of an undisturbed run of two ranks added."""
    start, run_dir = time.perf_counter(), folder / "ddp"
    typed = [*words(place.dataset, "fp32", DDP), f"hydra.run.dir={run_dir}"]
    good(paceline(*typed, before=importable))
    end = (*end_of(run_dir), time.perf_counter() - start)
    return place._replace(ends={**place.ends, "ddp": end})


def importable() -> None:
    """Let ranks import the tests' own model."""
    os.environ["PYTHONPATH"] = str(ROOT)


def ranks_of(pid: int) -> list[int]:
    """Return the children of ``pid`` that are ranks."""
    return [child for child in children_of(pid) if b"framework.cli.start_rank" in command_of(child)]


def one_killed(place: Place, draw: random.Random) -> str:
    """Kill a rank, or now and then the parent, with SIGKILL."""
    with Command(*next_start(place, "fp32", draw), *DDP, before=importable) as command:
        wait_for(lambda: len(ranks_of(command.pid)) == 2, "ranks")
        ranks = ranks_of(command.pid)
        time.sleep(draw.uniform(0, 0.9 * place.ends["ddp"][2]))
        victim = draw.choice([*ranks, *ranks, command.pid])
        with suppress(ProcessLookupError):  # it had finished
            os.kill(victim, signal.SIGKILL)
        start = time.monotonic()
        command.process.join(DOWN_S)
        wait_for(lambda: not any(map(is_alive, ranks)), "the ranks' end", DOWN_S)
        code, took_s = command.process.exitcode, time.monotonic() - start
    if took_s > DOWN_S or code not in (0, 7, -signal.SIGKILL):
        return f"exit code {code} after {took_s:.0f} s"
    if damaged := torn():
        return damaged
    good(paceline(*next_start(place, "fp32", draw), *DDP, before=importable))
    return difference(place, "ddp")


def killed_and_started_again(place: Place, draw: random.Random) -> str:
    """Kill a rank with SIGKILL. The launcher starts all ranks again."""
    with Command(
        *next_start(place, "fp32", draw), *DDP, "parallel.max_restarts=3", before=importable
    ) as command:
        wait_for(lambda: len(ranks_of(command.pid)) == 2, "ranks")
        ranks = ranks_of(command.pid)
        time.sleep(draw.uniform(0, 0.9 * place.ends["ddp"][2]))
        victim = draw.choice(ranks)
        with suppress(ProcessLookupError):  # it had finished
            os.kill(victim, signal.SIGKILL)
        start = time.monotonic()
        command.process.join(DOWN_S)  # both: training again, or at its end
        again = command.process.exitcode is not None or (
            len(ranks_of(command.pid)) == 2 and ranks_of(command.pid) != ranks
        )
        good(command.wait())
    late = f"not at work again {time.monotonic() - start:.0f} s later"
    return difference(place, "ddp") if again else late


def one_killed_while_they_meet(place: Place, draw: random.Random) -> str:
    """Kill a rank with SIGKILL while the other waits for it, before anything can be saved."""
    with Command(*next_start(place, "fp32", draw), *DDP, before=importable) as command:
        wait_for(lambda: len(ranks_of(command.pid)) == 2, "ranks")
        ranks = ranks_of(command.pid)
        victim = draw.choice(ranks)
        os.kill(victim, signal.SIGSTOP)
        time.sleep(draw.uniform(3, 5))
        os.kill(victim, signal.SIGKILL)
        start = time.monotonic()
        command.process.join(DOWN_S)
        wait_for(lambda: not any(map(is_alive, ranks)), "the ranks' end", DOWN_S)
        code, took_s = command.process.exitcode, time.monotonic() - start
    return "" if code == 7 and took_s < DOWN_S else f"exit code {code} after {took_s:.0f} s"


# -------------------------------------------------------------------------- damaged states


class Unpickled(Exception):
    """torch was asked to read what is damaged."""


def make_state(path: Path) -> bytes:
    """Save a state as runs do, with weights, counts and generators. Return its bytes."""
    draw = torch.Generator().manual_seed(0)
    weights = {f"layer.{number}": torch.randn(40, 25, generator=draw) for number in range(4)}
    state = {"model": weights, "progress": {"step": 7}, "generators": [torch.get_rng_state()]}
    save_state(path, {**state, "best": {"loss": 0.5}}, 7, 3)
    return path.read_bytes()


def damaged(whole: bytes, draw: random.Random) -> bytes:
    """Flip one to three bits, cut the end off, or append bytes."""
    kind = draw.randrange(4)
    if kind == 0:
        return whole[: draw.randrange(len(whole))]
    if kind == 1:
        return whole + draw.randbytes(draw.randint(1, 100))
    data = bytearray(whole)
    for position in draw.sample(range(8 * len(data)), draw.randint(1, 3)):
        data[position // 8] ^= 1 << position % 8
    return bytes(data)


def is_refused(whole: bytes, draw: random.Random) -> str:
    """Damage the state once. Return "" if it is refused before anything is unpickled."""
    path = Path("step-00000007.pt")
    path.write_bytes(damaged(whole, draw))
    load = torch.load
    torch.load = _never
    try:
        read_state(path)
    except Damaged as error:
        return "" if "\n" not in str(error) else f"{error!r}"
    finally:
        torch.load = load
    return "not told"


def _never(*_, **__):
    raise Unpickled
