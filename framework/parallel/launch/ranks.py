"""What makes a process one of several ranks, and the store through which they meet."""

import os
import time
from datetime import timedelta
from functools import cache
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from framework.parallel.launch.hang import own_peer, set_peers

PREPARE_S = 6 * 3600  # how long rank 0 may take to pack the missing stores
MEET_S = 120  # how long ranks may take to start
POLL_S = 0.2  # between two looks for the text of rank 0


def under_launcher() -> bool:
    """Return whether a launcher has made this process one of several ranks."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


@cache
def meet() -> tuple[Any, int, int]:
    """Return (store, rank, world size), or raise RuntimeError. A process meets the others once."""
    store, rank, world_size = next(iter(rendezvous("env://", timeout=timedelta(seconds=MEET_S))))
    # torchrun's restarts reuse the agent's store: the prefix hides the addresses of a dead attempt.
    # If each attempt has its own store there is no prefix, because a host that has come back counts
    # its attempts from zero.
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    return store, rank, world_size


def all_up(store: Any, rank: int, world_size: int) -> None:
    """Wait for every rank to start, which on a host that was lost may take long."""
    store.set(f"paceline/up/{rank}", own_peer())
    keys = [f"paceline/up/{other}" for other in range(world_size)]
    store.wait(keys, timedelta(seconds=MEET_S))
    set_peers(store.multi_get(keys))


def share_text(text: str | None) -> str:
    """Return rank 0's text on every rank. The other ranks pass None.

    The text travels through the launcher's store, so no process group is needed yet.
    """
    store, _, _ = meet()
    key = "paceline/config"
    if text is not None:
        store.set(key, text)
        return text
    end = time.monotonic() + PREPARE_S
    # Not by ``store.wait``, during which Python handles no signal: if rank 0 fails, torchrun stops
    # the other ranks, and would kill them only 30 s later.
    while not store.check([key]) and time.monotonic() < end:
        time.sleep(POLL_S)
    return store.get(key).decode()
