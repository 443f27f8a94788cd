"""Find the rank for which the others have waited in vain, and say where it hangs.

Each rank keeps notes in memory that the other ranks of its host read through ``/proc``. The first
byte says whether the rank waits for the others. Behind it ``faulthandler`` writes the lines of
Python at which the rank is, when a SIGUSR2 asks for them. A rank answers whatever it is doing,
unless the process is stopped. Ranks of several hosts exchange what they find through files in the
run directory.
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
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from framework.errors import HungRankError
from framework.system.durable import temporary_name, write_json
from framework.system.user_code import Place, nearest_line

WORKS, WAITS, TIMED_OUT, CUT_OFF, KNOWS = range(5)  # the first byte
GAVE_UP = (TIMED_OUT, CUT_OFF, KNOWS)
GIVING_UP = (bytes([TIMED_OUT]), bytes([CUT_OFF]))
PATIENCE_S = 3.0  # how long a rank that gave up waits for the others to give up, too
ANSWER_S = 1.0  # how long a rank may take to write its lines
FAR_S = 2.0  # how long a file may take to reach another host
LOOK_S = 0.1
FRAME = re.compile(r'File "(.+)", line (\d+),? in (.+)')


class Peer(NamedTuple):
    """A rank as the others see it: its host, its process, and the descriptor of its notes."""

    host: str
    pid: int
    descriptor: int

    def notes(self) -> bytes:
        """Return the notes of a rank of this host, and b"" if it has ended."""
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


class OwnNotes(NamedTuple):
    """The notes of this process: the first byte, and the descriptor for what follows."""

    state: Any
    descriptor: int


class Findings(NamedTuple):
    """What is known of the ranks of some hosts.

    Attributes:
        timed_out: Whether one of them waited for as long as it may.
        hung: How each rank hangs that does not come to an exchange.
        waited: Where each other rank waited.
    """

    timed_out: bool
    hung: dict[int, str]
    waited: dict[int, str]


_peers: list[Peer] = []
_useless: list[Peer] = []  # ranks of this host that would never end by themselves


@cache
def own_notes() -> OwnNotes:
    """Begin the notes of this process."""
    if not hasattr(os, "memfd_create"):
        return OwnNotes(bytearray(1), -1)
    descriptor = os.memfd_create("paceline-rank")
    os.write(descriptor, bytes([WORKS]))
    faulthandler.register(signal.SIGUSR2, descriptor)
    return OwnNotes(mmap.mmap(descriptor, 1), descriptor)


def own_peer() -> str:
    """Return what the other ranks must know of this one."""
    host = socket.gethostname()
    with suppress(OSError):
        host += f" {os.readlink('/proc/self/ns/pid')}"  # containers have process ids of their own
    return json.dumps(Peer(host, os.getpid(), own_notes().descriptor))


def set_peers(texts: Sequence[bytes]) -> None:
    """Remember all ranks, in their order, from what ``own_peer`` returns on each."""
    _peers[:] = [Peer(*json.loads(text)) for text in texts]


def hung_rank(
    error: BaseException, rank: int, run_dir: Path, timeout_s: float
) -> HungRankError | None:
    """Return the error that names the rank that hangs, or None if none does.

    Args:
        error: What an exchange raised in this process.
        rank: This rank.
        run_dir: The directory of the run, which all hosts share.
        timeout_s: How long a rank waits for the others.
    """
    if rank >= len(_peers):
        return None  # the ranks have not met
    timed_out = re.search("timed? ?out", str(error), re.IGNORECASE) is not None
    frames = reversed(traceback.extract_tb(error.__traceback__))
    own = "".join(f'  File "{at.filename}", line {at.lineno} in {at.name}\n' for at in frames)
    state, descriptor = own_notes()
    os.write(descriptor, own.encode())
    state[0] = TIMED_OUT if timed_out else CUT_OFF
    here, texts = _of_this_host(rank, timed_out, own)
    heard = _of_other_hosts(rank, here, run_dir)
    state[0] = KNOWS
    if not heard.timed_out or not heard.hung:
        _useless.clear()  # a rank was lost instead
        return None
    ranks = _named(sorted(heard.hung))
    hangs = ", ".join(dict.fromkeys(heard.hung.values()))  # ranks often hang alike
    waits = _grouped(heard.waited)
    what = f"{hangs}, while the others waited {timeout_s:g} s ({waits})"
    fix = "correct that, or raise parallel.timeout_s if it only takes longer"
    fault = HungRankError(103, ranks, what, fix)
    fault.rank = min(heard.hung)
    fault.add_note("\n".join(f"rank {other}:\n{text}" for other, text in sorted(texts.items())))
    return fault


def _of_this_host(rank: int, timed_out: bool, own: str) -> tuple[Findings, dict[int, str]]:
    """Return what is known of the ranks of this host, and the lines at which each of them is."""
    host = _peers[rank].host
    others = {n: peer for n, peer in enumerate(_peers) if peer.host == host and n != rank}
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        firsts = [peer.notes()[:1] for peer in others.values()]
        if all(not first or first[0] in GAVE_UP for first in firsts):
            break
        time.sleep(LOOK_S)
    before = {n: notes for n, peer in others.items() if (notes := peer.notes())}
    living = dict(before)
    busy = {n: others[n] for n, notes in before.items() if notes[0] not in GAVE_UP}
    for peer in busy.values():
        peer.signal(signal.SIGUSR2)
    end = time.monotonic() + ANSWER_S
    while busy and time.monotonic() < end:
        time.sleep(LOOK_S)
        living |= {n: notes for n, peer in busy.items() if (notes := peer.notes())}
    hung: dict[int, str] = {}
    waited = {rank: _line(own)}
    texts = {rank: own}
    for n, notes in living.items():
        texts[n] = notes[1:].decode(errors="replace")
        if n in busy and (others[n].is_stopped() or before[n][0] != WAITS):
            hung[n] = f"hangs at {_line(texts[n])}"
            if others[n].is_stopped():
                hung[n] = f"hangs, since process {others[n].pid} is stopped"
        else:
            waited[n] = _line(texts[n])
    _useless[:] = busy.values()
    timed_out = timed_out or any(notes[0] == TIMED_OUT for notes in before.values())
    return Findings(timed_out, hung, waited), texts


def _of_other_hosts(rank: int, here: Findings, run_dir: Path) -> Findings:
    """Return ``here`` with what the ranks of other hosts know, and with those that say nothing."""
    far = {n for n, peer in enumerate(_peers) if peer.host != _peers[rank].host}
    if not far:
        return here
    name = f"hang.{_peers[0].pid}"  # of this attempt
    write_json(temporary_name(run_dir / f"{name}.rank{rank}"), here._asdict())
    end = time.monotonic() + PATIENCE_S + ANSWER_S + FAR_S
    while True:
        hung, waited, timed_out = dict(here.hung), dict(here.waited), here.timed_out
        for path in run_dir.glob(f"{name}.rank*.tmp.*"):
            with suppress(OSError, ValueError):
                told = json.loads(path.read_text(encoding="utf-8"))
                timed_out |= told["timed_out"]
                hung |= {int(n): line for n, line in told["hung"].items()}
                waited |= {int(n): line for n, line in told["waited"].items()}
        missing = far - hung.keys() - waited.keys()
        if not missing or time.monotonic() > end:
            break
        time.sleep(LOOK_S)
    hung |= {n: f"hangs on {_peers[n].host.split()[0]}" for n in missing}
    return Findings(timed_out, hung, waited)


def _line(text: str) -> str:
    """Return the line at which a rank is, from what its ``faulthandler`` has written."""
    main_thread = text.rpartition("(most recent call first):")[2]
    frames = [Place(file, int(line), name) for file, line, name in FRAME.findall(main_thread)]
    return nearest_line(frames) or "an unknown line"


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _grouped(lines: dict[int, str]) -> str:
    """Name the ranks at each line."""
    ranks_at: dict[str, list[int]] = {}
    for rank, line in sorted(lines.items()):
        ranks_at.setdefault(line, []).append(rank)
    return "; ".join(f"{_named(ranks)} at {line}" for line, ranks in ranks_at.items())


def end_useless() -> None:
    """Kill the ranks of this host that hang, or wait for those: they react to no other signal.

    First let the others find out where these ranks are.
    """
    mine = os.getpid()
    host = next((peer.host for peer in _peers if peer.pid == mine), "")
    others = [peer for peer in _peers if peer.host == host and peer.pid != mine]
    end = time.monotonic() + PATIENCE_S
    while _useless and time.monotonic() < end:
        if not any(peer.notes()[:1] in GIVING_UP for peer in others):
            break
        time.sleep(LOOK_S)
    for peer in _useless:
        peer.signal(signal.SIGKILL)
