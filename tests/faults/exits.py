"""Send signals to runs of one host and of two hosts, from their start to their end.

A scheduler decides by the exit code whether to start the command again, so only the documented
exit codes may occur. Two hosts are two network namespaces, which need root.
"""

import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path

from framework.system.stopping import NUMBERS
from tests.cluster.namespaces import Hosts, refused
from tests.faults.lanes import Row, repeat
from tests.faults.starting import Started, fault_of, make_place

NUM_STEPS = 60
LIMIT_S = 600.0  # to get to a step: the cores may be busy
RUN = (
    "train",
    "recipes=digits",
    "batch_size=96",
    f"max_steps={NUM_STEPS}",
    "report_every=1",
    "checkpoint.every_steps=20",
    "sink=[jsonl]",
    "loader=prefetch",
    "hydra.run.dir=run",
)
WAYS_OF_ONE_HOST = (
    ("workers.num=2", "workers.kind=process"),
    ("parallel=ddp", "parallel.num_processes=2"),
)
WAY_OF_TWO_HOSTS = (
    "parallel=ddp",
    "parallel.num_nodes=2",
    "parallel.num_processes=1",
    "parallel.timeout_s=20",
)
BEFORE_STEPS = 0.4  # of the signals
Begin = Callable[[Path, random.Random], AbstractContextManager[list[Started]]]


@contextmanager
def one_host(place: Path, draw: random.Random) -> Generator[list[Started]]:
    """Start a run with worker processes, or with two ranks."""
    command = Started((*RUN, f"dataset={place}/digits", *draw.choice(WAYS_OF_ONE_HOST)))
    with _ended([command]):
        yield [command]


@contextmanager
def two_hosts(place: Path, draw: random.Random) -> Generator[list[Started]]:
    """Start a run of two hosts with a rank each."""
    with Hosts(2) as hosts:
        endpoint = f"parallel.endpoint={hosts.address(0)}:29400"
        words = (*RUN, f"dataset={place}/digits", *WAY_OF_TWO_HOSTS, endpoint)
        commands = [Started(words, prefix=hosts.on(number)) for number in range(2)]
        with _ended(commands):
            yield commands


@contextmanager
def _ended(commands: list[Started]) -> Generator[None]:
    """Kill what still runs of the commands at the end of the block."""
    try:
        yield
    finally:
        for command in commands:
            for pid in (*command.left(), command.pid):
                if pid != command.pid or command.process.poll() is None:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            command.process.wait()


def is_survived(begin: Begin, place: Path, start_s: float, draw: random.Random) -> str:
    """Signal a run at a random moment, and return what is wrong with its end.

    Before the first step, all hosts get the signal, as from a scheduler. Later any of them may get
    it, and all have to stop.

    Args:
        begin: Starts the run.
        place: What ``make_place`` has made.
        start_s: How long the run takes to its first step.
        draw: Draws the moment, the signal and the processes that get it.
    """
    number = draw.choice(NUMBERS)
    os.environ["OMP_NUM_THREADS"] = "1"
    with begin(place, draw) as commands:
        for command in commands:
            command.wait_for_handlers()
        signalled = commands
        if draw.random() < BEFORE_STEPS:
            wait_s = draw.uniform(0, start_s)
            moment = f"{wait_s:.3f} s after its start"
        else:
            step, wait_s = draw.randrange(1, NUM_STEPS + 1), draw.uniform(0, 0.2)
            moment = f"{wait_s:.3f} s after step {step}"
            signalled = draw.choice([commands, *([command] for command in commands)])
            _wait_for(step, commands)
        time.sleep(wait_s)
        group = draw.random() < 0.5
        for command in signalled:
            command.send(number, group)
        ended = [command.end() for command in commands]
        left = [(command.settled(), command.temporary_left) for command in commands]
    codes = [done.code for done in ended]
    with open(place / "codes", "a") as file:
        file.writelines(f"{code}\n" for code in codes)
    name = signal.Signals(number).name
    where = f"{name} to {len(signalled)} of {len(commands)} hosts, {moment}: exit codes {codes}"
    for command, done in zip(commands, ended, strict=True):
        # a host that another one has stopped ends as after SIGUSR1
        fault = fault_of(done, number if command in signalled else signal.SIGUSR1)
        if fault:
            return f"{where}: {fault}"
    if 0 in codes and not _has_finished():
        return f"{where}: not finished"
    if 75 in codes and not list(Path("run/checkpoints").glob("step-*.pt")):
        return f"{where}: no state"
    if any(any(leftovers) for leftovers in left):
        return f"{where}: processes and temporary files left: {left}"
    return ""


def _wait_for(step: int, commands: list[Started]) -> None:
    """Wait until ``step`` is logged, or a command has ended."""
    until = time.monotonic() + LIMIT_S
    log = Path("run/metrics.jsonl")
    while all(command.process.poll() is None for command in commands):
        if log.exists() and len(log.read_bytes().splitlines()) >= step:
            return
        assert time.monotonic() < until, f"does not get to step {step}"
        time.sleep(0.005)


def _has_finished() -> bool:
    summary = Path("run/summary.json")
    return summary.exists() and json.loads(summary.read_text())["status"] == "finished"


def _start_s(begin: Begin, place: Path) -> float:
    """Return how long a run takes from its start to its first step."""
    home = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            start = time.monotonic()
            with begin(place, random.Random(0)) as commands:
                _wait_for(1, commands)
                return time.monotonic() - start
        finally:
            os.chdir(home)


def rows(times: int, seed: int, lanes: int = 2) -> Iterator[Row]:
    """Yield a row for one host and a row for two hosts, with ``times`` signals in all.

    The last column counts the exit codes of all hosts. The code is 0 after the last step.
    """
    each = -(-times // 2)
    with tempfile.TemporaryDirectory() as folder:
        place = make_place(Path(folder))
        for name, begin in (("one host", one_host), ("two hosts", two_hosts)):
            fault = f"a signal to {name}, from the start of a run to its end"
            if begin is two_hosts and refused():
                yield Row(fault, 0, (), 0.0, refused())
                continue
            codes = place / "codes"
            codes.write_text("")
            attempt = partial(is_survived, begin, place, _start_s(begin, place))
            row = repeat(fault, attempt, each, seed, lanes)
            counts = Counter(codes.read_text().split())
            yield row._replace(note=", ".join(f"{code}: {counts[code]}" for code in sorted(counts)))
