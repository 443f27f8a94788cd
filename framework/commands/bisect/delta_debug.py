"""Find the smallest part of a list of changes that has an effect.

Source: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", IEEE
Transactions on Software Engineering, 2002 (the algorithm ddmin).
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

Item = TypeVar("Item")


def smallest_part(
    items: Sequence[Item], has_effect: Callable[[Sequence[Item]], bool]
) -> list[Item]:
    """Return a part with the effect, of which no item can be left out.

    Args:
        items: All items, which together have the effect.
        has_effect: Tests a part. No part is tested twice.
    """
    places = list(range(len(items)))
    known: dict[tuple[int, ...], bool] = {}

    def test(part: Sequence[int]) -> bool:
        key = tuple(part)
        if key not in known:
            known[key] = has_effect([items[place] for place in part])
        return known[key]

    num_parts = 2
    while len(places) >= 2:
        parts = _split(places, num_parts)
        smaller = next((part for part in parts if test(part)), None)
        if smaller is not None:
            places, num_parts = smaller, 2
            continue
        others = [[place for place in places if place not in part] for part in parts]
        # two halves are each other's rest
        smaller = next((rest for rest in others if num_parts > 2 and test(rest)), None)
        if smaller is not None:
            places, num_parts = smaller, max(2, num_parts - 1)
        elif num_parts == len(places):
            break
        else:
            num_parts = min(len(places), 2 * num_parts)
    return [items[place] for place in places]


def _split(places: Sequence[int], count: int) -> list[list[int]]:
    """Return the places in so many parts of about the same length."""
    edges = [number * len(places) // count for number in range(count + 1)]
    return [list(places[start:end]) for start, end in pairwise(edges)]
