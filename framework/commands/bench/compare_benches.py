"""Decide whether two benches differ, cell by cell.

The samples are processes, that is, the repeats of a cell. Windows of one process share its memory
layout, its thread placement and the minute it ran in, so eight of them are not eight samples.
Two cells differ if both of these hold:

- p of the two-sided Mann-Whitney U test over their repeats is at most ``level`` (1 %). The test
  assumes no distribution: times have long tails, and two humps if a core changes its frequency. It
  needs five repeats on each side to reach 1 %.
- Their medians differ by more than ``threshold`` (3 %): a certain difference may not matter.

No test over two files can tell whether the code or the machine has changed. Every measurement
therefore comes with a yardstick, a fixed computation. A note says if the machine was faster or
slower by it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from framework.commands.bench.grid import Choice
from framework.commands.bench.lines import Bench, Measured
from framework.measure.statistics import LEVEL, least_p, median, u_test

FASTER = "faster"
SLOWER = "slower"
NOISE = "within the noise"
UNDECIDED = "too few repeats"
BROKEN = "runs no more"
MENDED = "runs now"
ONLY_BEFORE = "only in the first"
ONLY_AFTER = "only in the second"
NEITHER = "runs in neither"
FACTS = ("processor", "num_cores", "memory_bytes", "gpus", "platform")


@dataclass(frozen=True)
class DecisionRule:
    threshold: float = 0.03  # the least share by which medians must differ
    level: float = LEVEL  # how often chance alone may pass the test


@dataclass(frozen=True)
class CellVerdict:
    choice: Choice
    word: str
    before: Measured | None
    after: Measured | None
    change: float | None = None  # of the median, as a share of the first
    p: float | None = None  # of the test

    @property
    def noise(self) -> float:
        """The wider spread of the two, as a share of the median."""
        sides = [side for side in (self.before, self.after) if side is not None and side.rates]
        return max((side.spread for side in sides), default=0.0)

    @property
    def regressed(self) -> bool:
        return self.word in (SLOWER, BROKEN)


def judged(
    before: Sequence[Measured], after: Sequence[Measured], rule: DecisionRule
) -> list[CellVerdict]:
    """Return a verdict on every cell of either side, in the order of the first."""
    old = {tuple(sorted(cell.choice.items())): cell for cell in before}
    new = {tuple(sorted(cell.choice.items())): cell for cell in after}
    return [_verdict(old.get(key), new.get(key), rule) for key in dict.fromkeys([*old, *new])]


def _verdict(before: Measured | None, after: Measured | None, rule: DecisionRule) -> CellVerdict:
    if before is None:
        assert after is not None
        return CellVerdict(after.choice, ONLY_AFTER, before, after)
    if after is None:
        return CellVerdict(before.choice, ONLY_BEFORE, before, after)
    if not (before.runs and after.runs):
        words = {(True, False): BROKEN, (False, True): MENDED, (False, False): NEITHER}
        return CellVerdict(before.choice, words[before.runs, after.runs], before, after)
    return _tested(before, after, rule)


def _tested(before: Measured, after: Measured, rule: DecisionRule) -> CellVerdict:
    """Return the verdict on a cell that runs on both sides."""
    change = after.records_per_s / before.records_per_s - 1
    old = list(before.rates.values())
    new = list(after.rates.values())
    p = u_test(old, new)
    word = FASTER if change > 0 else SLOWER
    if abs(change) <= rule.threshold:
        word = NOISE
    elif least_p(len(old), len(new)) > rule.level:
        word = UNDECIDED
    elif p > rule.level:
        word = NOISE
    return CellVerdict(before.choice, word, before, after, change, p)


def blind(verdicts: Sequence[CellVerdict], rule: DecisionRule) -> list[CellVerdict]:
    """Return the verdicts "within the noise" whose noise would hide a change of the threshold."""
    equal = [verdict for verdict in verdicts if verdict.word == NOISE]
    return [verdict for verdict in equal if verdict.noise > rule.threshold]


def notes(before: Sequence[Bench], after: Sequence[Bench], rule: DecisionRule) -> list[str]:
    """Return what else differs: the machine, its speed, versions and settings."""
    return [*_differences(before[0].header, after[0].header), *_drift(before, after, rule)]


def _differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    for what, group, names in (
        ("another machine", "machine", FACTS),
        ("another version", "versions", sorted(old["versions"].keys() | new["versions"].keys())),
    ):
        for name in names:
            was = old[group].get(name)
            now = new[group].get(name)
            if was != now:
                yield f"{what}: {name} was {was}, is {now}"
    for name in ("overrides", "seconds", "burn_in"):
        was = _shown(old.get(name))
        now = _shown(new.get(name))
        if was != now:
            yield f"measured differently: {name} was {was}, is {now}"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "empty"
    return str(value)


def _drift(before: Sequence[Bench], after: Sequence[Bench], rule: DecisionRule) -> Iterator[str]:
    """Yield a note if the yardstick changed."""
    old = _yardsticks(before)
    new = _yardsticks(after)
    if not old or not new:
        return
    change = median(new) / median(old) - 1
    level = max(rule.level, least_p(len(old), len(new)))
    if abs(change) > rule.threshold and u_test(old, new) <= level:
        was = "faster" if change > 0 else "slower"
        yield (
            f"the machine itself was {abs(change):.1%} {was} in the second, by the fixed "
            "computation beside every measurement"
        )


def _yardsticks(benches: Sequence[Bench]) -> list[float]:
    """Return the median of each repeat, because its cells ran in the same minutes."""
    speeds: dict[tuple[int, int], list[float]] = {}
    for number, bench in enumerate(benches):
        for line in bench.lines:
            speed = line.get("yardstick_per_s")
            if isinstance(speed, float):
                speeds.setdefault((number, line["repeat"]), []).append(speed)
    return [median(values) for values in speeds.values()]
