"""The generators that a step may draw from, as one tensor of bytes."""

import random
from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch
from torch import Tensor

_PYTHON, _NUMPY = 625, 624  # words of the two Mersenne twisters, Python's position among them


def seed_generators(seed: int) -> None:
    """All of them, those of every GPU too."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))  # noqa: NPY002  # users' code may draw from it
    torch.manual_seed(seed)


def generator_state(device: torch.device) -> Tensor:
    """Of the generators a step may draw from: torch's, that of ``device`` where it is a GPU, Python's and NumPy's. uint8 [n].

    Orders, windows and augmentations draw from none of them (``framework.order``); dropout, and a user's own code, do.
    """
    version, words, gauss = random.getstate()
    assert (version, len(words)) == (3, _PYTHON)
    state = np.random.get_state()  # noqa: NPY002  # whatever draws from NumPy's global generator
    _, keys, position, has_gauss, cached = cast("tuple[str, np.ndarray, int, int, float]", state)
    numbers = [*words, *keys.tolist(), position, has_gauss, cached, gauss is not None, gauss or 0.0]
    parts = [torch.tensor(numbers, dtype=torch.float64).view(torch.uint8), torch.get_rng_state()]
    if device.type == "cuda":
        parts.append(torch.cuda.get_rng_state(device))
    return torch.cat(parts)


@contextmanager
def kept_generators(device: torch.device) -> Generator[None, None, None]:
    """What is drawn inside does not move them: looking at a run does not change what it learns. As they are: packed into a tensor, as for a state,
    they take four times as long.
    """
    python, numpy, host = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(host)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, device)


def set_generator_state(state: Tensor, device: torch.device) -> None:
    """Draw on from where ``generator_state`` was asked. A GPU's part is left out where there was none, or is none now."""
    split = 8 * (_PYTHON + _NUMPY + 5)
    numbers = state[:split].clone().view(torch.float64).tolist()
    words, keys = numbers[:_PYTHON], numbers[_PYTHON : _PYTHON + _NUMPY]
    position, has_gauss, cached, has_next, gauss = numbers[_PYTHON + _NUMPY :]
    random.setstate((3, tuple(map(int, words)), gauss if has_next else None))
    numpy_state = ("MT19937", np.array(keys, np.uint32), int(position), int(has_gauss), cached)
    np.random.set_state(numpy_state)  # noqa: NPY002
    size = torch.get_rng_state().numel()
    torch.set_rng_state(state[split : split + size].clone())
    if device.type == "cuda" and len(state) > split + size:
        torch.cuda.set_rng_state(state[split + size :].clone(), device)
