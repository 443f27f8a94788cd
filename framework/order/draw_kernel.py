"""One GPU kernel that makes the random numbers of a batch, written in Triton.

It computes what ``draws.DeviceDraws.by_operators`` does, in unsigned integers of 64 bits. Only
``draws`` imports this module, when a GPU gets its first batch: Triton takes half a second.
"""

# pyright: reportMissingParameterType=false, reportCallIssue=false

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256  # numbers that one program of the kernel makes


def launch(
    indices: Tensor, key: int, first: int, alternating: Sequence[int], mirrored: bool, out: Tensor
) -> None:
    """Write the numbers of records (int64 [B]) to ``out``, float32 [B, num_draws].

    Both are contiguous. The columns in ``alternating`` come from epoch 0, whose key is ``first``,
    and are 1 - 2**-24 - d in place of d if ``mirrored``.
    """
    count = out.numel()
    make_draws[(-(-count // BLOCK),)](
        indices,
        out,
        count,
        key,
        first,
        int(mirrored),
        NUM_DRAWS=out.shape[1],
        ALTERNATING=sum(1 << column for column in alternating),
        BLOCK=BLOCK,
        enable_fp_fusion=False,  # Triton 3.9 warns if it is not set
    )


@triton.jit
def _mixed(x):
    """Return the top 24 bits of splitmix64's finalizer."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return (x ^ (x >> 31)) >> 40


@triton.jit(do_not_specialize=["count", "key", "first_key", "mirrored"])
def make_draws(
    indices,
    out,
    count,
    key,
    first_key,
    mirrored,
    NUM_DRAWS: tl.constexpr,
    ALTERNATING: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Make ``BLOCK`` numbers, in the order in which they lie in memory."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = place < count
    column = place % NUM_DRAWS
    index = tl.load(indices + place // NUM_DRAWS, mask=exists, other=0)
    counter = (index * NUM_DRAWS + column).to(tl.uint64) * 0x9E3779B97F4A7C15
    bits = _mixed(counter + key.to(tl.uint64))
    if ALTERNATING:
        first = _mixed(counter + first_key.to(tl.uint64))
        first = tl.where(mirrored != 0, 0xFFFFFF - first, first)
        bits = tl.where(((ALTERNATING >> column) & 1) != 0, first, bits)
    # exact: the numbers are multiples of 2**-24 below 1
    tl.store(out + place, bits.to(tl.int32).to(tl.float32) * (1.0 / 16777216), mask=exists)
