"""Random numbers of an objective that no cut of the work changes: each record has its own."""

import math
from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import Tensor

from framework.contracts.batch import Batch
from framework.errors import ConfigError
from framework.order.draws import OF_OBJECTIVE, draws

VALIDATION = -1  # in place of an epoch: all validations have the same noise
_seed, _epoch = 0, VALIDATION  # of the run in this process, as torch has one generator


def record_noise(batch: Batch, *shape: int, use: int = 0) -> Tensor:
    """Return noise of a standard normal distribution for each record of a batch.

    The numbers of a record depend only on the run's seed, the epoch, the record's ``index``, the
    shape and ``use``. So ranks, passes, workers and a resumed run leave them as they are, and all
    phases of a step see the same. In validation they are the same every time.

    Args:
        batch: With ``index``, int64 [B].
        shape: Of the noise of one record, such as 100 or 64, 1, 1.
        use: Another number, 0 or more, gives other noise in the same pass.

    Returns:
        float32 [B, *shape] on the device of ``batch["index"]``.

    Raises:
        ConfigError: C365 inside a captured step, which would repeat the noise of one epoch.

    Source: Box and Muller, "A note on the generation of random normal deviates", 1958.
    """
    index = batch["index"]
    if index.is_cuda and torch.cuda.is_current_stream_capturing():
        what = "record_noise would repeat the noise of one epoch in every replay"
        raise ConfigError(365, "cuda_graph = true", what, "set cuda_graph=false")
    num = math.prod(shape)
    half = -(-num // 2)
    # Functions of a vector and of its last elements may differ in the last bit of a double, which
    # rounding to float32 removes.
    pairs = draws(index, _seed, _epoch, 2 * half, OF_OBJECTIVE + use).double()
    radius = (-2 * (1 - pairs[:, :half]).log()).sqrt()
    angle = 2 * math.pi * pairs[:, half:]
    noise = torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)[:, :num]
    return noise.float().view(len(index), *shape)


def key_noise(seed: int, epoch: int) -> None:
    """Let ``record_noise`` depend on this seed and epoch."""
    global _seed, _epoch
    _seed, _epoch = seed, epoch


@contextmanager
def noise_of(epoch: int) -> Generator[None]:
    """Let ``record_noise`` depend on another epoch inside the block."""
    before = _seed, _epoch
    key_noise(_seed, epoch)
    try:
        yield
    finally:
        key_noise(*before)
