"""Cut an epoch in any way: each record comes once, in order, with equal work for all ranks."""

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from framework.order.batches import Order, spread
from tests.contract.cases import shares
from tests.faults.lanes import Row, repeat

MOST_SHARES = 600  # of all ranks together: what an attempt may cost


def rows(times: int, seed: int) -> Iterator[Row]:
    fault = (
        "any number of records, ranks, passes, any batch, limit, block, start: "
        "each record once, one order, equal shares"
    )
    yield repeat(fault, is_whole, times, seed)


def is_whole(draw: random.Random) -> str:
    """Cut one epoch in one way. Return what is wrong, or ""."""
    order, epoch = drawn(draw), draw.randrange(4)
    whole = [share[0] for share in shares(replace(order, world_size=1, accumulate=1), epoch)]
    ranks = [shares(replace(order, rank=rank), epoch) for rank in range(order.world_size)]
    start = draw.randint(0, order.num_steps + 1)
    rank = draw.randrange(order.world_size)
    tail = shares(replace(order, rank=rank), epoch, start)
    wrong = [*wrong_steps(order, whole, ranks)]
    if not each_once(order, whole):
        wrong.append("not each record once")
    if tail != ranks[rank][first_of(order, start) :]:
        wrong.append(f"rank {rank} from step {start} is another")
    return f"{order} epoch {epoch}: {', '.join(dict.fromkeys(wrong))}" if wrong else ""


def drawn(draw: random.Random) -> Order:
    """Draw any order of up to 5,000 records. The number of its shares is bounded."""
    num_records = draw.randrange(draw.choice((5, 20, 20, 50, 50, 50, 500, 5001)))
    world_size = draw.choice((1, 2, 3, 4, 8, draw.randint(1, 64)))
    accumulate = draw.choice((1, 1, 2, 3, draw.randint(1, 20)))
    num_passes = max(1, MOST_SHARES // world_size)
    least = math.ceil(num_records * accumulate / num_passes)
    batch_size = draw.randint(
        max(1, least), max(1, least, draw.choice((4, 32, num_records, 2 * num_records)))
    )
    shuffle = draw.random() < 0.8
    limit = draw.choice((None, None, draw.randint(1, 60), num_records + 1, max(1, num_records - 1)))
    block = draw.choice((None, draw.randint(1, 8), draw.randint(1, 2000)))
    window = draw.randint(1, 20)
    seed, ranks = draw.randrange(1 << 32), (0, world_size)
    return Order(num_records, batch_size, seed, shuffle, accumulate, *ranks, limit, block, window)


def each_once(order: Order, whole: list[list[int]]) -> bool:
    """Return whether the batches have all records that are used, in the sizes that are due."""
    seen = [index for batch in whole for index in batch]
    used = spread(order.num_records, order.num_used).tolist()
    as_stored = order.shuffle or seen == used
    in_range = not used or (used[0] == 0 and used[-1] < order.num_records)
    sizes = [len(batch) == order.batch_size for batch in whole[:-1]]
    is_once = sorted(seen) == used == sorted(set(used)) and len(used) == order.num_used
    return is_once and as_stored and in_range and all(sizes) and len(whole) == order.num_steps


def wrong_steps(order: Order, whole: list[list[int]], ranks: list[list[Any]]) -> Iterator[str]:
    """Yield what is wrong with the ranks' shares together of each step, pass by pass."""
    if len({len(rank) for rank in ranks}) > 1 or len(ranks[0]) != first_of(order, order.num_steps):
        yield "ranks have not equally many shares"
        return
    passes = zip(*ranks, strict=True)
    for batch in whole:
        together: list[int] = []
        weight, num_passes = 0.0, min(order.accumulate, len(batch))
        for number in range(num_passes):
            shares_of_pass = next(passes)
            part, fillers = joined(shares_of_pass)
            together += part
            weight += sum(share[1] for share in shares_of_pass)
            if {share[2] for share in shares_of_pass} != {number == num_passes - 1}:
                yield "ranks step at different passes"
            if any(filler not in ([index] for index in part) for filler in fillers):
                yield "a filler from elsewhere"
            if any(
                share[1] not in (0.0, len(share[0]) * order.world_size / len(batch))
                for share in shares_of_pass
            ):
                yield "a share weighs more or less than its records"
        if together != batch:
            yield "another order than on one rank in one pass"
        if not math.isclose(weight, order.world_size, rel_tol=1e-12):
            yield f"weights add up to {weight / order.world_size}"


def joined(shares_of_pass: tuple[Any, ...]) -> tuple[list[int], list[list[int]]]:
    """Return (records in the order in which they were dealt to the ranks, fillers) of one pass."""
    real = [share[0] for share in shares_of_pass if share[1]]
    dealt = [hand[turn] for turn in range(len(real[0])) for hand in real if turn < len(hand)]
    return dealt, [share[0] for share in shares_of_pass if not share[1]]


def first_of(order: Order, step: int) -> int:
    """Return the number of a rank's shares before ``step``."""
    starts = range(0, order.num_used, order.batch_size)
    sizes = [min(order.batch_size, order.num_used - start) for start in starts]
    return sum(min(order.accumulate, size) for size in sizes[:step])
