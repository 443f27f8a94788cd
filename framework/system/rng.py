"""What decides whether torch's numbers repeat: the random generators, and its algorithms.

Dropout and users' code use the generators; ``framework.order`` does not.
"""

import os
import random
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

# Words of the two Mersenne twisters. Python's include the position.
_PYTHON = 625
_NUMPY = 624
_deterministic = False  # whether the newest run in this process asked for it
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_DEPTH = 4  # of objects inside objects, such as a transform of a Dataset
_MOST_PARTS = 100  # of a list that is searched, such as the steps of a transform


def seed_generators(seed: int) -> None:
    """Seed all generators, including those of every GPU."""
    seed_host_generators(seed)
    torch.manual_seed(seed)


def seed_host_generators(seed: int) -> None:
    """Seed the generators of this process's host. A GPU's keep their state."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))  # noqa: NPY002  # users' code may use it
    torch.default_generator.manual_seed(seed)


def generator_mark() -> tuple[Any, ...]:
    """Return what differs, by ``!=``, once a generator of the host has drawn or was seeded."""
    _, keys, *numpy = np.random.get_state()  # noqa: NPY002
    host = torch.get_rng_state().numpy().tobytes()
    return random.getstate(), np.asarray(keys).tobytes(), tuple(numpy), host


def generator_state(device: torch.device) -> Tensor:
    """Return the state of all generators as uint8 [n], including the GPU ``device``."""
    version, words, gauss = random.getstate()
    assert (version, len(words)) == (3, _PYTHON)
    state = np.random.get_state()  # noqa: NPY002
    _, keys, position, has_gauss, cached = cast("tuple[str, np.ndarray, int, int, float]", state)
    numbers = [*words, *keys.tolist(), position, has_gauss, cached, gauss is not None, gauss or 0.0]
    parts = [torch.tensor(numbers, dtype=torch.float64).view(torch.uint8), torch.get_rng_state()]
    if device.type == "cuda":
        parts.append(torch.cuda.get_rng_state(device))
    return torch.cat(parts)


@contextmanager
def kept_generators(device: torch.device) -> Generator[None, None, None]:
    """Restore the generators after the block: looking at a run does not change what it learns."""
    # This takes a quarter of the time of ``generator_state`` and ``set_generator_state``.
    python = random.getstate()
    numpy = np.random.get_state()  # noqa: NPY002
    host = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(host)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, device)


@contextmanager
def kept_own_generators(owner: object) -> Generator[None, None, None]:
    """Restore the generators that an object has, or the objects inside it, after the block."""
    with ExitStack() as restore:
        for generator in _generators_in(owner, _DEPTH):
            if isinstance(generator, np.random.Generator):
                bits = generator.bit_generator
                restore.callback(setattr, bits, "state", bits.state)
            elif isinstance(generator, random.Random):
                restore.callback(generator.setstate, generator.getstate())
            else:
                restore.callback(generator.set_state, generator.get_state())
        yield


def _generators_in(owner: object, depth: int) -> Iterator[Any]:
    if isinstance(owner, _GENERATORS):
        yield owner
    elif depth:
        parts = [*getattr(owner, "__dict__", {}).values()]
        if isinstance(owner, list | tuple | dict) and len(owner) <= _MOST_PARTS:
            parts += owner.values() if isinstance(owner, dict) else owner
        for part in parts:
            yield from _generators_in(part, depth - 1)


def set_generator_state(state: Tensor, device: torch.device) -> None:
    """Restore a state from ``generator_state``, and the GPU's if there was and is a GPU."""
    split = 8 * (_PYTHON + _NUMPY + 5)
    numbers = state[:split].clone().view(torch.float64).tolist()
    words = numbers[:_PYTHON]
    keys = numbers[_PYTHON : _PYTHON + _NUMPY]
    position, has_gauss, cached, has_next, gauss = numbers[_PYTHON + _NUMPY :]
    random.setstate((3, tuple(map(int, words)), gauss if has_next else None))
    numpy_state = ("MT19937", np.array(keys, np.uint32), int(position), int(has_gauss), cached)
    np.random.set_state(numpy_state)  # noqa: NPY002
    size = torch.get_rng_state().numel()
    torch.set_rng_state(state[split : split + size].clone())
    if device.type == "cuda" and len(state) > split + size:
        torch.cuda.set_rng_state(state[split + size :].clone(), device)


def is_deterministic() -> bool:
    """Return whether the newest run in this process asked for algorithms that repeat."""
    return _deterministic


def choose_algorithms(device: torch.device, deterministic: bool) -> None:
    """Let cuDNN try which algorithms are fastest, or take those that repeat their results.

    With ``deterministic``, an operator that has no such algorithm raises RuntimeError. Call it
    before the first use of the device.
    """
    global _deterministic  # noqa: PLW0603  # torch has one choice, too
    if deterministic or _deterministic:  # otherwise the user's own code may have chosen
        _deterministic = deterministic
        torch.use_deterministic_algorithms(deterministic)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS looks when it starts
        # filling memory that is about to be written would only take time
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]  # torch's stub lacks it
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = not deterministic  # batches have few sizes
