"""Whether what was measured twice differs: cell by cell, by a test of which every word is meant.

The independent samples are processes. The windows inside one share its memory layout, its threads' places and the minute it ran in, so
that eight of them are not eight samples; a process, that is a cell's repeat, is one. Two cells differ when both are true:

- an exact two-sided Mann-Whitney U test over their repeats is below ``level`` (1 %). It assumes nothing about how times are spread, which
  have long tails and two humps where a core changes its frequency. Five repeats on each side are the fewest that can reach 1 %;
- their medians differ by more than ``threshold`` (3 %): a difference that is certain need not matter.

What no test over two files can tell: whether the code has changed or the machine has. Each measurement stands beside a yardstick, a fixed
computation, and a machine that was faster or slower by it is said.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from framework.commands.bench.grid import Choice
from framework.commands.bench.lines import Bench, Measured
from framework.measure.statistics import LEVEL, least_p, median, u_test

FASTER, SLOWER, NOISE = "faster", "slower", "within the noise"
UNDECIDED, BROKEN, MENDED = "too few repeats", "runs no more", "runs now"
ONLY_BEFORE, ONLY_AFTER, NEITHER = "only in the first", "only in the second", "runs in neither"
FACTS = ("processor", "num_cores", "memory_bytes", "gpus", "platform")


@dataclass(frozen=True)
class Rule:
    """``threshold``: the least share by which medians must differ; ``level``: how often chance alone may pass the test."""

    threshold: float = 0.03
    level: float = LEVEL


@dataclass(frozen=True)
class CellVerdict:
    """One cell in both files. ``change``: of the median, as a share of the first; ``p``: how often chance would make ranks differ as much."""

    choice: Choice
    word: str
    before: Measured | None
    after: Measured | None
    change: float | None = None
    p: float | None = None

    @property
    def noise(self) -> float:
        """The wider spread of the two, as a share of the median."""
        return max(
            (side.spread for side in (self.before, self.after) if side is not None and side.rates),
            default=0.0,
        )

    @property
    def regressed(self) -> bool:
        return self.word in (SLOWER, BROKEN)


def judged(before: Sequence[Measured], after: Sequence[Measured], rule: Rule) -> list[CellVerdict]:
    """Every cell of either side, in the order of the first."""
    old, new = (
        {tuple(sorted(cell.choice.items())): cell for cell in side} for side in (before, after)
    )
    return [_verdict(old.get(key), new.get(key), rule) for key in dict.fromkeys([*old, *new])]


def _verdict(before: Measured | None, after: Measured | None, rule: Rule) -> CellVerdict:
    if before is None or after is None:
        present = before or after
        assert present is not None
        return CellVerdict(
            present.choice, ONLY_BEFORE if after is None else ONLY_AFTER, before, after
        )
    if not before.runs or not after.runs:
        word = BROKEN if before.runs else MENDED if after.runs else NEITHER
        return CellVerdict(before.choice, word, before, after)
    change = after.records_per_s / before.records_per_s - 1
    old, new = list(before.rates.values()), list(after.rates.values())
    p = u_test(old, new)
    return CellVerdict(
        before.choice, _word(change, p, least_p(len(old), len(new)), rule), before, after, change, p
    )


def _word(change: float, p: float, least: float, rule: Rule) -> str:
    if abs(change) <= rule.threshold:
        return NOISE
    if least > rule.level:
        return UNDECIDED
    if p > rule.level:
        return NOISE
    return FASTER if change > 0 else SLOWER


def notes(before: Sequence[Bench], after: Sequence[Bench], rule: Rule) -> list[str]:
    """What a reader must know beside the verdicts: another machine, other versions, other settings, a machine that was slower."""
    return [*_differences(before[0].header, after[0].header), *_drift(before, after, rule)]


def blind(verdicts: Sequence[CellVerdict], rule: Rule) -> list[CellVerdict]:
    """Those within the noise whose noise is so wide that a difference of the threshold would not have been seen."""
    return [
        verdict for verdict in verdicts if verdict.word == NOISE and verdict.noise > rule.threshold
    ]


def _differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    for name in FACTS:
        if old["machine"].get(name) != new["machine"].get(name):
            yield f"another machine: {name} was {old['machine'].get(name)}, is {new['machine'].get(name)}"
    for name in sorted(old["versions"].keys() | new["versions"].keys()):
        if old["versions"].get(name) != new["versions"].get(name):
            yield f"another version: {name} was {old['versions'].get(name)}, is {new['versions'].get(name)}"
    for name in ("overrides", "seconds", "burn_in"):
        if old.get(name) != new.get(name):
            yield f"measured otherwise: {name} was {_shown(old.get(name))}, is {_shown(new.get(name))}"


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) or "empty" if isinstance(value, list) else str(value)


def _drift(before: Sequence[Bench], after: Sequence[Bench], rule: Rule) -> Iterator[str]:
    """The yardstick's own verdict. Of each repeat the median: cells of a repeat stand in the same minutes."""
    old, new = _yardsticks(before), _yardsticks(after)
    if not old or not new:
        return
    change = median(new) / median(old) - 1
    if abs(change) > rule.threshold and u_test(old, new) <= max(
        rule.level, least_p(len(old), len(new))
    ):
        was = "faster" if change > 0 else "slower"
        yield f"the machine itself was {abs(change):.1%} {was} in the second, by the fixed computation beside every measurement"


def _yardsticks(benches: Sequence[Bench]) -> list[float]:
    found: dict[tuple[int, int], list[float]] = {}
    for number, bench in enumerate(benches):
        for line in bench.lines:
            if isinstance(line.get("yardstick_per_s"), float):
                found.setdefault((number, line["repeat"]), []).append(line["yardstick_per_s"])
    return [median(speeds) for speeds in found.values()]
