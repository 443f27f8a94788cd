"""Damage a saved state, and check that it is refused before it is unpickled."""

import random
from pathlib import Path

import torch

from framework.train.checkpoint import Damaged, read_state, save_state


class Unpickled(Exception):
    """torch was asked to read what is damaged."""


def make_state(path: Path) -> bytes:
    """Save a state as runs do, with weights, counts and generators. Return its bytes."""
    draw = torch.Generator().manual_seed(0)
    weights = {f"layer.{number}": torch.randn(40, 25, generator=draw) for number in range(4)}
    save_state(
        path,
        {
            "model": weights,
            "progress": {"step": 7},
            "generators": [torch.get_rng_state()],
            "best": {"loss": 0.5},
        },
        7,
        3,
    )
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
