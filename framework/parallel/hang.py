"""Mark when a rank waits for the others, and find the one that hangs, with its line.

Each rank keeps notes in memory that the other ranks of its host read through ``/proc``. The first
byte says whether the rank waits for the others. Behind it ``faulthandler`` writes the lines of
Python at which the rank is, when a SIGUSR2 asks for them, unless the process is stopped.
"""

import faulthandler
import json
import mmap
import os
import re
import signal
import socket
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, final

import torch

from framework.contracts.span import EXCHANGE, OWN
from framework.errors import HungRankError
from framework.system.user_code import Place, nearest_line

WORKS, WAITS, TIMED_OUT, CUT_OFF, KNOWS = range(5)  # the first byte; from TIMED_OUT on: gave up
PATIENCE_S = 3.0  # how long a rank that gave up waits for the others to give up, too
ANSWER_S = 1.0  # how long a rank may take to write its lines
LOOK_S = 0.1
FRAME = re.compile(r'File "(.+)", line (\d+),? in (.+)')


@final
class Exchange:
    """A context around an exchange between ranks. Marking takes 0.4 us.

    The first byte of ``state`` says whether this rank waits for the others.
    """

    def __init__(self, state: Any = None) -> None:
        self._state = bytearray(1) if state is None else state
        self.mark: Callable[[str], None] = lambda _: None
        self._is_open = False

    def begin(self) -> None:
        if not torch.compiler.is_compiling():  # what is compiled cannot look at the time
            self._is_open = True
            self.mark(OWN)
            self._state[0] = WAITS

    def end(self) -> None:
        """End the exchange, if one has begun."""
        if self._is_open and not torch.compiler.is_compiling():
            self._is_open = False
            self._state[0] = WORKS
            self.mark(EXCHANGE)

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Note that this rank waits for the others outside a step, where nothing is timed."""
        self._state[0] = WAITS
        yield
        self._state[0] = WORKS  # not after an error, when the rank still is about to give up

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *error: object) -> None:
        self.end()

    def __deepcopy__(self, memo: Any) -> "Exchange":
        """Return this object, since a copied model still belongs to the same rank."""
        return self


class Peer(NamedTuple):
    """A rank as the others see it: its host, its process, and the descriptor of its notes."""

    host: str
    pid: int
    descriptor: int

    def notes(self) -> bytes:
        """Return the notes of this rank of our host, and b"" if it has ended."""
        with suppress(OSError):
            return Path(f"/proc/{self.pid}/fd/{self.descriptor}").read_bytes()
        return b""

    def is_stopped(self) -> bool:
        with suppress(OSError):
            stat = Path(f"/proc/{self.pid}/stat").read_bytes()
            return stat.rpartition(b")")[2].split()[0] in (b"T", b"t")
        return False

    def signal(self, number: int) -> None:
        if self.notes():  # the process is still the same
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


_peers: list[Peer] = []
_useless: list[Peer] = []  # ranks of this host that would never end by themselves


@cache
def own_notes() -> tuple[Any, int]:
    """Begin the notes of this process. Return its state, one byte, and the descriptor for lines."""
    if not hasattr(os, "memfd_create"):
        return bytearray(1), -1
    descriptor = os.memfd_create("paceline-rank")
    os.write(descriptor, bytes([WORKS]))
    faulthandler.register(signal.SIGUSR2, descriptor)
    return mmap.mmap(descriptor, 1), descriptor


def own_peer() -> str:
    """Return what the other ranks must know of this one."""
    host = socket.gethostname()
    with suppress(OSError):
        host += f" {os.readlink('/proc/self/ns/pid')}"  # containers have process ids of their own
    return json.dumps(Peer(host, os.getpid(), own_notes()[1]))


def set_peers(texts: Sequence[bytes]) -> None:
    """Remember all ranks, in their order, from what ``own_peer`` returns on each."""
    _peers[:] = [Peer(*json.loads(text)) for text in texts]


def hung_rank(error: BaseException, rank: int, timeout_s: float) -> HungRankError | None:
    """Return the error that names the rank of this host that hangs, or None if none does.

    ``error`` is what an exchange raised in this rank, which waits ``timeout_s`` for the others.
    """
    if rank >= len(_peers):
        return None  # the ranks have not met
    timed_out = re.search("timed? ?out", str(error), re.IGNORECASE) is not None
    frames = reversed(traceback.extract_tb(error.__traceback__))
    lines = "".join(f'  File "{at.filename}", line {at.lineno} in {at.name}\n' for at in frames)
    state, descriptor = own_notes()
    os.write(descriptor, lines.encode())
    state[0] = TIMED_OUT if timed_out else CUT_OFF
    texts = {rank: lines}
    hung: dict[int, str] = {}  # how each rank hangs that does not come to an exchange
    waited = {rank: _line(lines)}  # where each other rank waited
    host = _peers[rank].host
    others = {n: peer for n, peer in enumerate(_peers) if peer.host == host and n != rank}
    gave_up = bytes([TIMED_OUT])
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and any(b"" < p.notes()[:1] < gave_up for p in others.values()):
        time.sleep(LOOK_S)
    before = {n: notes for n, peer in others.items() if (notes := peer.notes())}
    living = dict(before)
    busy = {n: others[n] for n, notes in before.items() if notes[0] < TIMED_OUT}
    for peer in busy.values():
        peer.signal(signal.SIGUSR2)
    end = time.monotonic() + ANSWER_S
    while busy and time.monotonic() < end:
        time.sleep(LOOK_S)
        living |= {n: notes for n, peer in busy.items() if (notes := peer.notes())}
    for n, notes in living.items():
        texts[n] = notes[1:].decode(errors="replace")
        if n in busy and others[n].is_stopped():
            hung[n] = f"hangs, since process {others[n].pid} is stopped"
        elif n in busy and before[n][0] != WAITS:
            hung[n] = f"hangs at {_line(texts[n])}"
        else:
            waited[n] = _line(texts[n])
    _useless[:] = busy.values()
    timed_out |= any(notes[0] == TIMED_OUT for notes in before.values())
    state[0] = KNOWS
    if not timed_out or not hung:
        _useless.clear()  # a rank was lost instead
        return None
    hangs = ", ".join(dict.fromkeys(hung.values()))  # ranks often hang alike
    ranks_at: dict[str, list[int]] = {}
    for other, line in sorted(waited.items()):
        ranks_at.setdefault(line, []).append(other)
    waits = "; ".join(f"{_named(ranks)} at {line}" for line, ranks in ranks_at.items())
    what = f"{hangs}, while the others waited {timeout_s:g} s ({waits})"
    fix = "correct that, or raise parallel.timeout_s if it only takes longer"
    fault = HungRankError(103, _named(sorted(hung)), what, fix)
    fault.rank = min(hung)
    fault.add_note("\n".join(f"rank {other}:\n{text}" for other, text in sorted(texts.items())))
    return fault


def _line(text: str) -> str:
    main_thread = text.rpartition("(most recent call first):")[2]
    frames = [Place(file, int(line), name) for file, line, name in FRAME.findall(main_thread)]
    return nearest_line(frames) or "an unknown line"


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def end_useless() -> None:
    """Kill the ranks of this host that hang, or wait for those: they react to no other signal.

    First let the others find out where these ranks are.
    """
    mine = os.getpid()
    host = next((peer.host for peer in _peers if peer.pid == mine), "")
    others = [peer for peer in _peers if peer.host == host and peer.pid != mine]
    giving_up = (bytes([TIMED_OUT]), bytes([CUT_OFF]))
    end = time.monotonic() + PATIENCE_S
    while _useless and time.monotonic() < end and any(p.notes()[:1] in giving_up for p in others):
        time.sleep(LOOK_S)
    for peer in _useless:
        peer.signal(signal.SIGKILL)
