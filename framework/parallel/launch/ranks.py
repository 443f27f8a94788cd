"""What makes a process one of several ranks, and the store through which they meet."""

import os
from datetime import timedelta
from functools import cache
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

PREPARE_S = 6 * 3600  # how long rank 0 may take to pack what is missing
MEET_S = 120  # how long ranks may take to start


def under_launcher() -> bool:
    """Whether a launcher has made this process one of several ranks."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def environment_rank() -> int:
    return int(os.environ.get("RANK", "0"))


@cache
def meet() -> tuple[Any, int, int]:
    """(store, rank, world size), met once per process. RuntimeError where not all ranks come.

    Where restarts use the agent's store again, as torchrun's do unless told otherwise, a prefix keeps an attempt from a dead one's addresses. Where each has
    a store of its own there is none: a host that has come back counts its attempts from zero.
    """
    store, rank, world_size = next(iter(rendezvous("env://", timeout=timedelta(seconds=MEET_S))))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    return store, rank, world_size


def all_up(store: Any, rank: int, world_size: int) -> None:
    """Wait until every rank is there: those of a host that was lost may come much later than a step may take."""
    store.set(f"paceline/up/{rank}", "")
    store.wait([f"paceline/up/{other}" for other in range(world_size)], timedelta(seconds=MEET_S))


def share_text(text: str | None) -> str:
    """Rank 0's text on every rank, through the launcher's store, before there is a process group. ``text`` is None elsewhere."""
    store, rank, _ = meet()
    key = "paceline/config"
    if rank == 0:
        assert text is not None
        store.set(key, text)
        return text
    store.wait([key], timedelta(seconds=PREPARE_S))
    return store.get(key).decode()
