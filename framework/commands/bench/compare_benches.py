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

from framework.commands.bench.bench_lines import Bench, BenchCell, Choice, choice_key
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
    before: BenchCell | None
    after: BenchCell | None
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
    before: Sequence[BenchCell], after: Sequence[BenchCell], rule: DecisionRule
) -> list[CellVerdict]:
    """Return a verdict on every cell of either side, in the order of the first."""
    old = {choice_key(cell.choice): cell for cell in before}
    new = {choice_key(cell.choice): cell for cell in after}
    verdicts: list[CellVerdict] = []
    for key in dict.fromkeys([*old, *new]):
        was, now = old.get(key), new.get(key)
        if was is not None and now is not None:
            verdicts.append(_verdict(was, now, rule))
        elif was is not None:
            verdicts.append(CellVerdict(was.choice, ONLY_BEFORE, was, None))
        else:
            verdicts.append(CellVerdict(new[key].choice, ONLY_AFTER, None, now))
    return verdicts


def _verdict(before: BenchCell, after: BenchCell, rule: DecisionRule) -> CellVerdict:
    if not (before.runs and after.runs):
        words = {(True, False): BROKEN, (False, True): MENDED, (False, False): NEITHER}
        return CellVerdict(before.choice, words[before.runs, after.runs], before, after)
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
    return [each for each in verdicts if each.word == NOISE and each.noise > rule.threshold]


def notes(before: Sequence[Bench], after: Sequence[Bench], rule: DecisionRule) -> Iterator[str]:
    """Yield what else differs: the machine, its speed, versions and settings."""
    old, new = before[0].header, after[0].header
    versions = sorted({*old["versions"], *new["versions"]})
    for what, group, names in (
        ("another machine", "machine", FACTS),
        ("another version", "versions", versions),
    ):
        for name in names:
            was, now = old[group].get(name), new[group].get(name)
            if was != now:
                yield f"{what}: {name} was {was}, is {now}"
    for name in ("overrides", "seconds", "burn_in"):
        was, now = (
            " ".join(value) or "empty" if isinstance(value, list) else str(value)
            for value in (old.get(name), new.get(name))
        )
        if was != now:
            yield f"measured differently: {name} was {was}, is {now}"
    speeds, later = _yardsticks(before), _yardsticks(after)
    if speeds and later:
        change = median(later) / median(speeds) - 1
        level = max(rule.level, least_p(len(speeds), len(later)))
        if abs(change) > rule.threshold and u_test(speeds, later) <= level:
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
            if "yardstick_per_s" in line:
                speeds.setdefault((number, line["repeat"]), []).append(line["yardstick_per_s"])
    return [median(values) for values in speeds.values()]
