"""The goals on a GPU, and whether the figures of benchmarks/gpu.py meet them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

HEAD = ("goal", "wanted", "measured", "met")


class Goal(NamedTuple):
    """A limit for one figure.

    Attributes:
        part: The part of benchmarks/gpu.py that measures the figure.
        what: What the figure is, with its unit.
        keys: Where the figure lies in the part's result.
        limit: The least or the largest value that meets the goal.
        at_least: Whether ``limit`` is the least.
    """

    part: str
    what: str
    keys: tuple[str, ...]
    limit: float
    at_least: bool

    @property
    def wanted(self) -> str:
        sign = ">=" if self.at_least else "<="
        return f"{sign} {self.limit:g}"

    def figure(self, result: Mapping[str, Any]) -> float | None:
        """Return the figure, or None if the part did not measure it."""
        value: Any = result
        for key in self.keys:
            if not isinstance(value, Mapping) or key not in value:
                return None
            value = value[key]
        return float(value)

    def is_met(self, figure: float) -> bool:
        if self.at_least:
            return figure >= self.limit
        return figure <= self.limit


COPIES = "copies beside computing, share of the possible overlap"
BANDWIDTH = "of the pinned copy rate, loader=stream"
GOALS = (
    Goal("overlap", f"{COPIES}: as long as the step", ("copies/balanced/stream",), 0.97, True),
    Goal("overlap", f"{COPIES}: a quarter of it", ("copies/dominated/stream",), 0.97, True),
    Goal("loading", f"{BANDWIDTH}, normalizing included", ("stream/normalize",), 0.9, True),
    Goal("loading", f"{BANDWIDTH}, from a store in memory", ("stream/store",), 0.9, True),
    Goal(
        "overhead",
        "Trainer beside a loop by hand, us a step",
        ("kernel by kernel", "us"),
        15,
        False,
    ),
    Goal("overhead", "the same with cuda_graph, us a step", ("one graph", "us"), 3, False),
    Goal("cifar10_fast", "test accuracy, of 50,000 images", ("val", "accuracy"), 0.94, True),
    Goal("cifar10_fast", "seconds of training: fewer than a minute", ("train_s",), 60, False),
    Goal("cifar10_fast", "share of a step outside computing", ("outside",), 0.03, False),
)


def judged(part: str, result: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return a row (``HEAD``) for each goal of ``part``, given what the part measured."""
    rows: list[tuple[str, str, str, str]] = []
    for goal in GOALS:
        if goal.part != part:
            continue
        figure = goal.figure(result)
        if figure is None:
            rows.append((goal.what, goal.wanted, "not measured", "open"))
            continue
        met = "yes" if goal.is_met(figure) else "no"
        rows.append((goal.what, goal.wanted, f"{figure:.4g}", met))
    return rows
