"""Signals at any moment of start-up: a documented exit code, nothing left, and a next run works."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, chdir, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from framework.system.stopping import NUMBERS
from tests.cli.command import Done
from tests.cluster.namespaces import Hosts, refused
from tests.conftest import orphaned_memory
from tests.faults.forked import paceline
from tests.faults.lanes import Row, repeat

# 0: it was over already; 75 and 130: state saved; 130 and 143: nothing to save
CODES = {signal.SIGINT: (0, 130), signal.SIGTERM: (0, 75, 143), signal.SIGUSR1: (0, 75, 143)}
TRACES = ("Traceback", "Exception ignored", "Fatal Python error", "terminate called", "Error:")
LIMIT_S = 120.0
FOLDER = Path(__file__).parents[2]
SMALL = ("recipes=digits", "max_steps=2", "limit=48", "batch_size=16")


class Way(NamedTuple):
    """One command that is signalled while it starts.

    Attributes:
        name: What the table calls it.
        words: The command line.
        folders: What it makes, and nothing else.
        group: Whether the whole process group gets the signal, as from a terminal.
    """

    name: str
    words: tuple[str, ...]
    folders: tuple[str, ...]
    group: bool = False


TRAIN = ("train", *SMALL, "hydra.run.dir=run")
PROCESSES = ("workers.num=2", "workers.kind=process", "loader=prefetch")
DDP = ("parallel=ddp", "parallel.num_processes=2")
SWEEP = ("train", "-m", "seed=1,2", *SMALL, "hydra.sweep.dir=sweep")
PACK = ("pack", "input=arrays", "input.path=arrays.npz", "output.path=x.h5", "workers=2")
WAYS = (
    Way("train", TRAIN, ("run",)),
    Way("train, worker processes", (*TRAIN, *PROCESSES), ("run",), group=True),
    Way("train, two ranks", (*TRAIN, *DDP), ("run",)),
    Way("train, two ranks, all are signalled", (*TRAIN, *DDP), ("run",), group=True),
    Way("a sweep", SWEEP, ("sweep",)),
    Way("pack", PACK, ("x.h5", "x.h5.parts"), group=True),
)


AT_IMPORT = """
import signal, sys

class Finder:
    @staticmethod
    def find_spec(name, *_):
        if name == {module!r}:
            sys.meta_path.remove(Finder)
            signal.raise_signal({number})

sys.meta_path.insert(0, Finder)
from framework.__main__ import main
main()
"""


class Started:
    """A command in a new interpreter; ``program`` is code to run instead, ``prefix`` runs it."""

    def __init__(
        self, words: Sequence[str], program: str | None = None, prefix: Sequence[str] = ()
    ) -> None:
        self.out, self.err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        # ranks and workers are known by this, whatever becomes of their parents
        self.mark = f"PACELINE_TEST_OF={os.getpid()}-{time.monotonic_ns()}"
        name, _, value = self.mark.partition("=")
        # temporary files beside it may be those of other commands
        self.temporary = Path(tempfile.mkdtemp(prefix="paceline-start-"))
        self.temporary_left: list[str] = []
        environment = {**os.environ, "PYTHONPATH": str(FOLDER), name: value}
        environment["TMPDIR"] = str(self.temporary)
        start = ["-m", "framework"] if program is None else ["-c", program]
        command = [*prefix, sys.executable, *start, *words]
        pipes = {"stdout": self.out, "stderr": self.err, "stdin": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, env=environment, process_group=0, **pipes)
        self.pid = self.process.pid

    def wait_for_handlers(self) -> None:
        """Wait until Paceline has installed its handlers. Before that, Python handles signals."""
        end = time.monotonic() + LIMIT_S
        while self.process.poll() is None and not catches(self.pid, signal.SIGTERM):
            assert time.monotonic() < end, "no handlers"
            time.sleep(0.0005)

    def send(self, number: int, group: bool) -> None:
        """Send a signal to the process, or to its whole group."""
        if self.process.poll() is None:
            (os.killpg if group else os.kill)(self.pid, number)

    def end(self) -> Done:
        """Wait for its end. A hang is an AssertionError."""
        try:
            code = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            for pid in (*self.left(), self.pid):
                os.kill(pid, signal.SIGKILL)
            self.process.wait()
            raise AssertionError("hangs") from None
        finally:
            self._take_temporary()
        words = []
        for file in (self.out, self.err):
            file.seek(0)
            words.append(file.read().decode(errors="replace"))
            file.close()
        return Done(code, *words)

    def _take_temporary(self) -> None:
        """Note the temporary files that are still there when the kernel has ended its processes."""
        self.settled()
        self.temporary_left = sorted(os.listdir(self.temporary))
        shutil.rmtree(self.temporary)

    def left(self) -> list[int]:
        """Return the processes that still run and that this command has started."""
        return [
            int(pid)
            for pid in os.listdir("/proc")
            if pid.isdecimal() and int(pid) != self.pid and self._is_mine(pid)
        ]

    def _is_mine(self, pid: str) -> bool:
        try:
            return self.mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:  # gone, or somebody else's
            return False

    def settled(self) -> list[int]:
        """Return those that are left when the kernel has had time to end them."""
        end = time.monotonic() + 10.0
        while self.left() and time.monotonic() < end:
            time.sleep(0.01)
        return self.left()


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    (mask,) = [line.split()[1] for line in lines if line.startswith("SigCgt:")]
    return bool(int(mask, 16) >> (number - 1) & 1)


def make_place(folder: Path) -> Path:
    """Return a folder with a packed dataset, to be copied for each attempt, and what is packed."""
    np.savez(folder / "arrays.npz", image=np.zeros((400, 3, 16, 16), np.uint8))
    done = paceline("train", *SMALL, f"hydra.run.dir={folder}/first", f"dataset={folder}/digits")
    assert done.code == 0, done.err
    shutil.rmtree(folder / "first")
    return folder


def words_of(way: Way, place: Path) -> list[str]:
    """Return the command line, with the dataset that is there already."""
    dataset = [] if way.words[0] == "pack" else [f"dataset={place}/digits"]
    return [*way.words, *dataset]


def is_survived(place: Path, way: Way, took_s: float, twice: bool, draw: random.Random) -> str:
    """Signal one start at a random moment, if ``twice`` start again, and say what is wrong."""
    number, moment_s = draw.choice(NUMBERS), draw.uniform(0, took_s)
    return wrong(place, way, number, moment_s, twice)


def wrong(place: Path, way: Way, number: int, moment_s: float, twice: bool) -> str:
    """Return what goes wrong if ``number`` arrives ``moment_s`` after Paceline's first line."""
    before = orphaned_memory()
    if way.words[0] == "pack":
        shutil.copy(place / "arrays.npz", "arrays.npz")
    started = Started(words_of(way, place))
    started.wait_for_handlers()
    time.sleep(moment_s)
    started.send(number, way.group)
    done = started.end()
    fault = fault_of(done, number) or left_behind(started, done.code, before, place, way)
    if not fault and twice:
        again = words_of(way, place)
        if way.words[0] == "train" and way.words[-1] != "hydra.sweep.dir=sweep":
            again.append("resume=auto")
        shutil.rmtree("sweep", ignore_errors=True)
        ended = Started(again).end()
        if ended.code:
            fault = f"the next run: exit code {ended.code}: {ended.err[-500:]}"
    name = signal.Signals(number).name
    where = f"{way.name}, {name} after {moment_s:.3f} s, exit code {done.code}"
    return f"{where}: {fault}" if fault else ""


def wrong_at_import(place: Path, way: Way, number: int, module: str) -> str:
    """Return what goes wrong if a signal arrives just as ``module`` is imported."""
    before = orphaned_memory()
    started = Started(words_of(way, place), AT_IMPORT.format(module=module, number=int(number)))
    done = started.end()
    if not done.code:
        return f"{module} is not imported"
    return fault_of(done, number) or left_behind(started, done.code, before, place, way)


def fault_of(done: Done, number: int) -> str:
    """Return what is wrong with how a command ended."""
    if done.code not in CODES[signal.Signals(number)]:
        return f"not a documented exit code: {done.err[-700:]}"
    words = done.out + done.err
    for trace in TRACES:
        if trace in words:
            return f"{trace}: {words[-900:]}"
    if done.code and not done.err.strip():
        return "not a word"
    return ""


def left_behind(started: Started, code: int, before: set[str], place: Path, way: Way) -> str:
    """Return what a command has left: processes, temporary files and locks in any place."""
    if pids := started.settled():
        return f"processes left: {pids}"
    files = [str(path) for folder in (Path.cwd(), place) for path in folder.rglob("*")]
    temporary = (".lock", "run.next.json", ".part")
    wrong = [path for path in files if ".tmp." in path or path.endswith(temporary)]
    wrong += [name for name in os.listdir() if name not in (*way.folders, "arrays.npz", "outputs")]
    if code:
        folders = [path for path in Path.cwd().rglob("*") if path.is_dir()]
        wrong += [str(path) for path in folders if not any(path.iterdir())]
    wrong += started.temporary_left
    if segments := orphaned_memory() - before:
        time.sleep(2.0)  # those of a test beside this one go by themselves
        wrong += sorted(segments & orphaned_memory())
    run = Path("run")
    if run.exists() and not (run / "exit.json").exists():
        wrong.append(f"a run that does not say how it ended: {sorted(os.listdir(run))}")
    return f"left behind: {wrong}" if wrong else ""


def rows(times: int, seed: int, lanes: int = 2) -> Iterator[Row]:
    """Yield two rows a command, ``times`` signals in all; a fifth runs again afterwards."""
    each = -(-times // len(WAYS))
    with tempfile.TemporaryDirectory() as folder:
        place = make_place(Path(folder))
        for way in WAYS:
            took_s = duration_s(place, way)
            for twice, share in ((False, each - each // 5), (True, each // 5)):
                name = f"a signal while it starts, {'then again' if twice else 'once'}: {way.name}"
                attempt = partial(is_survived, place, way, took_s, twice)
                if share:
                    yield repeat(name, attempt, share, seed, lanes, f"in {took_s:.1f} s")


def duration_s(place: Path, way: Way) -> float:
    """Return how long the command takes from its first line to its end."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        if way.words[0] == "pack":
            shutil.copy(place / "arrays.npz", "arrays.npz")
        started = Started(words_of(way, place))
        started.wait_for_handlers()
        start = time.monotonic()
        done = started.end()
        assert done.code == 0, f"exit code {done.code}: {done.err[-500:]}"
        return time.monotonic() - start


# ------------------------------------------------------- from the start of a run to its end

NUM_STEPS = 60
STEP_S = 600.0  # to get to a step: the cores may be busy
SIXTY_STEPS = (
    *("train", "recipes=digits", "batch_size=96", f"max_steps={NUM_STEPS}", "report_every=1"),
    *("checkpoint.every_steps=20", "sink=[jsonl]", "loader=prefetch", "hydra.run.dir=run"),
)
WAYS_OF_ONE_HOST = (("workers.num=2", "workers.kind=process"), DDP)
WAY_OF_TWO_HOSTS = (
    *("parallel=ddp", "parallel.num_nodes=2", "parallel.num_processes=1"),
    "parallel.timeout_s=20",
)
BEFORE_STEPS = 0.4  # of the signals
Begin = Callable[[Path, random.Random], AbstractContextManager[list[Started]]]


@contextmanager
def one_host(place: Path, draw: random.Random) -> Generator[list[Started]]:
    """Start a run with worker processes, or with two ranks."""
    command = Started((*SIXTY_STEPS, f"dataset={place}/digits", *draw.choice(WAYS_OF_ONE_HOST)))
    with _ended([command]):
        yield [command]


@contextmanager
def two_hosts(place: Path, draw: random.Random) -> Generator[list[Started]]:
    """Start a run of two hosts with a rank each."""
    with Hosts(2) as hosts:
        endpoint = f"parallel.endpoint={hosts.address(0)}:29400"
        words = (*SIXTY_STEPS, f"dataset={place}/digits", *WAY_OF_TWO_HOSTS, endpoint)
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


def is_stopped(begin: Begin, place: Path, start_s: float, draw: random.Random) -> str:
    """Signal a run of hosts at a random moment, and return what is wrong with its end."""
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
    until = time.monotonic() + STEP_S
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
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        start = time.monotonic()
        with begin(place, random.Random(0)) as commands:
            _wait_for(1, commands)
            return time.monotonic() - start


def rows_of_hosts(times: int, seed: int, lanes: int = 2) -> Iterator[Row]:
    """Yield a row for one host and one for two, with the counts of all hosts' exit codes."""
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
            attempt = partial(is_stopped, begin, place, _start_s(begin, place))
            row = repeat(fault, attempt, each, seed, lanes)
            counts = Counter(codes.read_text().split())
            yield row._replace(note=", ".join(f"{code}: {counts[code]}" for code in sorted(counts)))
