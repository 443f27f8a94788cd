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
    """(store, rank, world size), met once per process. The prefix keeps a restarted attempt from a dead one's addresses."""
    store, rank, world_size = next(iter(rendezvous("env://", timeout=timedelta(seconds=MEET_S))))
    return PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store), rank, world_size


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
