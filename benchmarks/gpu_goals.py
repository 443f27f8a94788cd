"""The goals on a GPU, and the check whether the figures of benchmarks/gpu.py meet them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

HEAD = ("goal", "wanted", "measured", "met")


class Goal(NamedTuple):
    """A limit for one figure.

    Attributes:
        part: The part of benchmarks/gpu.py that measures the figure.
        what: What the figure is, with its unit.
        keys: The nested keys of the figure in the part's result.
        limit: The bound.
        at_least: Whether the figure must be at least ``limit``. If not, at most.
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


COPIES = "overlap of copies and computing, share of the possible"
BANDWIDTH = "loading with loader=stream, share of the pinned copy rate"
AU = "AU of a ResNet-50 from:"
GOALS = (
    Goal(
        "overlap", f"{COPIES}: copies as long as the step", ("copies/balanced/stream",), 0.97, True
    ),
    Goal(
        "overlap",
        f"{COPIES}: copies of a quarter of the step",
        ("copies/dominated/stream",),
        0.97,
        True,
    ),
    Goal("loading", f"{BANDWIDTH}, normalizing included", ("stream/normalize",), 0.9, True),
    Goal("loading", f"{BANDWIDTH}, from a store in memory", ("stream/store",), 0.9, True),
    Goal(
        "overhead",
        "time that the Trainer adds to a loop written by hand, us per step",
        ("kernel by kernel", "us"),
        15,
        False,
    ),
    Goal(
        "overhead", "time that it adds with cuda_graph, us per step", ("one graph", "us"), 3, False
    ),
    Goal(
        "cifar10_fast",
        "test accuracy after training on 50,000 images",
        ("val", "accuracy"),
        0.94,
        True,
    ),
    Goal("cifar10_fast", "training time, s", ("train_s",), 60, False),
    Goal(
        "cifar10_fast",
        "share of a step outside forward, backward and optimizer",
        ("outside",),
        0.03,
        False,
    ),
    *(
        Goal("utilization", f"{AU} {row}", ("resnet50", row, "utilization"), limit, True)
        for row, limit in {
            "raw store 256": 0.97,
            "JPEG store, 256 pixels": 0.97,
            "JPEG store, full size": 0.8,
            "data=dali, JPEG store, full size": 0.96,
        }.items()
    ),
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
