"""The file of a bench: its lines of JSON, the table of its cells, and what two files show.

The first line describes the machine and the command. Each other line is a measurement or a cell
that cannot run; docs/design/0005-measuring.md describes their form.

The samples of a comparison are the repeats of a cell, since windows of one process share its memory
layout and its minute. No test can tell whether the code or the machine has changed, so a fixed
computation is measured with each cell.
"""

import glob
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from framework.cli.tables import print_table, rate
from framework.contracts.span import waiting_share
from framework.errors import ConfigError, say
from framework.measure import statistics
from framework.measure.statistics import median

Line = dict[str, Any]
Choice = dict[str, str]  # the swept keys and their values, as typed
SCHEMA = 1
HEADER = {"bench", "cells", "machine", "versions", "what"}
DOES_NOT_RUN = "does not run"
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


class Bench(NamedTuple):
    header: Line
    lines: list[Line]


@dataclass(frozen=True)
class BenchCell:
    choice: Choice
    rates: Mapping[tuple[int, int], float]  # mean records per second of each (file, repeat)
    waiting: float | None = None  # share of a step that waits for a batch; None without a clock
    illegal: str = ""  # why it does not run

    @property
    def runs(self) -> bool:
        return bool(self.rates) and not self.illegal

    @property
    def records_per_s(self) -> float:
        return median(self.rates.values())

    @property
    def spread(self) -> float:
        return statistics.spread_share(self.rates.values())

    def relative_to(self, other: "BenchCell") -> float | None:
        """Return the median ratio within repeats, since a slow minute is slow for both."""
        shared = self.rates.keys() & other.rates.keys()
        if not shared:
            return None
        return median(self.rates[key] / other.rates[key] for key in shared)


def label(choice: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in choice.items()) or "as given"


def named(choice: Mapping[str, str], text: str, separator: str) -> str:
    """Return ``text`` behind the name of the cell, unless ``text`` already contains the name."""
    name = label(choice)
    return text if name in text else f"{name}{separator}{text}"


def figure(value: float | None, pattern: str, unit: str = "") -> str:
    return "" if value is None else format(value, pattern) + unit


def choice_key(choice: Choice) -> tuple[tuple[str, str], ...]:
    """Return the same key for the same choices, whatever their order."""
    return tuple(sorted(choice.items()))


def collected(benches: Sequence[Bench]) -> list[BenchCell]:
    """Return the cells of all files together, in the order of the first file's grid."""
    choices = {choice_key(choice): choice for choice in benches[0].header["cells"]}
    lines: dict[tuple[tuple[str, str], ...], list[tuple[int, Line]]] = {}
    for number, bench in enumerate(benches):
        for line in bench.lines:
            key = choice_key(line["cell"])
            choices.setdefault(key, line["cell"])
            lines.setdefault(key, []).append((number, line))
    cells: list[BenchCell] = []
    for key, choice in choices.items():
        rates: dict[tuple[int, int], float] = {}
        spans: dict[str, float] = {}
        illegal = ""
        for number, line in lines.get(key, ()):
            if "illegal" in line:
                illegal = line["illegal"]
                continue
            rates[number, line["repeat"]] = line["records_per_s"]
            for name, seconds in line["spans_s"].items():
                spans[name] = spans.get(name, 0.0) + seconds
        if key in lines:
            cells.append(BenchCell(choice, rates, waiting_share(spans), illegal))
    return cells


def read_lines(path: Path) -> Bench:
    """Read a file. ConfigError C187 if it is not the file of a bench."""
    try:
        header, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        bench = Bench(header, lines)
        is_bench = header.keys() >= HEADER and header["bench"] == SCHEMA
        if is_bench and all(cell.records_per_s > 0 for cell in collected([bench]) if cell.runs):
            return bench
        what = "is not the file of a bench"
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        what = f"is not the file of a bench ({error})"
    fix = "give files that 'paceline bench' has written"
    raise ConfigError(187, f"compare = {path}", what, fix)


def print_bench(cells: Sequence[BenchCell], what: str) -> None:
    """Print each cell, relative to the first that runs, and why a cell does not run."""
    keys = list(dict.fromkeys(key for cell in cells for key in cell.choice))
    first = next((cell for cell in cells if cell.rates), None)
    heads = ["records/s", "spread", "relative", *(["waiting"] if what == "train" else [])]
    rows: list[list[str]] = []
    for cell in cells:
        row = [cell.choice.get(key, "") for key in keys]
        if not cell.rates or first is None:
            rows.append([*row, DOES_NOT_RUN])
            continue
        spread = f"{cell.spread:.1%}" if len(cell.rates) > 1 else ""
        relative = figure(cell.relative_to(first), "#.3g", "x")
        row += [rate(cell.records_per_s), spread, relative, figure(cell.waiting, ".0%")]
        rows.append(row[: len(keys) + len(heads)])
    print_table(f"bench of {what}", keys, heads, rows)
    for cell in cells:
        if cell.illegal:
            say(named(cell.choice, cell.illegal, ": "))


@dataclass(frozen=True)
class DecisionRule:
    threshold: float = 0.03  # the least share by which medians must differ
    level: float = statistics.LEVEL  # how often chance alone may pass the test


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


def compare(first: str, second: str, rule: DecisionRule) -> int:
    """Print the verdicts. Return 1 if something is slower or runs no more.

    Each side is a file, the folder of a bench, or a pattern, whose files count as one.
    """
    before, after = _side(first), _side(second)
    whats = {bench.header["what"] for bench in (*before, *after)}
    if len(whats) > 1:
        what = f"measured different things: {', '.join(sorted(whats))}"
        raise ConfigError(187, f"compare = {first} {second}", what, "compare like with like")
    verdicts = judged(collected(before), collected(after), rule)
    print_verdicts(verdicts, whats.pop())
    for remark in notes(before, after, rule):
        print(f"note: {remark}")
    noises = [each.noise for each in verdicts if each.word == NOISE and each.noise > rule.threshold]
    if noises:
        many = f"{len(noises)} of {len(verdicts)} spread by up to {max(noises):.0%}"
        fix = "measure on an idle machine, or raise repeats="
        print(f"note: within the noise, but {many} and would hide a smaller change; {fix}")
    print(
        f"Benches differ if their medians are more than {100 * rule.threshold:g} % apart and p is "
        f"at most {rule.level:g}. p is from a Mann-Whitney U test over repeats. "
        "Parentheses show the number of repeats."
    )
    if any(verdict.regressed for verdict in verdicts):
        return 1
    if any(verdict.word == UNDECIDED for verdict in verdicts):
        what = f"medians differ, but too few repeats to exclude chance at {rule.level:g}"
        fix = f"measure both with repeats={statistics.repeats_needed(rule.level)}, or raise level="
        raise ConfigError(188, "compare", what, fix)
    return 0


def _side(pattern: str) -> list[Bench]:
    paths = sorted(glob.glob(pattern, recursive=True))
    if os.path.exists(pattern):
        paths = [pattern]
    if not paths:
        fix = "give files that 'paceline bench' has written"
        raise ConfigError(187, f"compare = {pattern}", "no such file", fix)
    return [read_lines(Path(p, "bench.jsonl") if os.path.isdir(p) else Path(p)) for p in paths]


def judged(
    before: Sequence[BenchCell], after: Sequence[BenchCell], rule: DecisionRule
) -> list[CellVerdict]:
    """Return a verdict on every cell of either side, in the order of the first."""
    old = {choice_key(cell.choice): cell for cell in before}
    new = {choice_key(cell.choice): cell for cell in after}
    verdicts: list[CellVerdict] = []
    for key in dict.fromkeys([*old, *new]):
        was, now = old.get(key), new.get(key)
        if was is None:
            verdicts.append(CellVerdict(new[key].choice, ONLY_AFTER, None, now))
            continue
        if now is None:
            verdicts.append(CellVerdict(was.choice, ONLY_BEFORE, was, None))
            continue
        if not (was.runs and now.runs):
            words = {(True, False): BROKEN, (False, True): MENDED, (False, False): NEITHER}
            verdicts.append(CellVerdict(was.choice, words[was.runs, now.runs], was, now))
            continue
        change = now.records_per_s / was.records_per_s - 1
        rates, later = list(was.rates.values()), list(now.rates.values())
        p = statistics.u_test(rates, later)
        word = FASTER if change > 0 else SLOWER
        if abs(change) <= rule.threshold:
            word = NOISE
        elif statistics.least_p(len(rates), len(later)) > rule.level:
            word = UNDECIDED
        elif p > rule.level:
            word = NOISE
        verdicts.append(CellVerdict(was.choice, word, was, now, change, p))
    return verdicts


def notes(before: Sequence[Bench], after: Sequence[Bench], rule: DecisionRule) -> Iterator[str]:
    """Yield what else differs: the machine, its speed, versions and settings."""
    old, new = before[0].header, after[0].header
    versions = sorted({*old["versions"], *new["versions"]})
    groups = (("another machine", "machine", FACTS), ("another version", "versions", versions))
    for what, group, names in groups:
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
        level = max(rule.level, statistics.least_p(len(speeds), len(later)))
        if abs(change) > rule.threshold and statistics.u_test(speeds, later) <= level:
            speed = f"{abs(change):.1%} {'faster' if change > 0 else 'slower'}"
            yield f"the machine itself was {speed} in the second, by a fixed computation"


def _yardsticks(benches: Sequence[Bench]) -> list[float]:
    """Return the median of each repeat, because its cells ran in the same minutes."""
    speeds: dict[tuple[int, int], list[float]] = {}
    for number, bench in enumerate(benches):
        for line in bench.lines:
            if "yardstick_per_s" in line:
                speeds.setdefault((number, line["repeat"]), []).append(line["yardstick_per_s"])
    return [median(values) for values in speeds.values()]


def print_verdicts(verdicts: Sequence[CellVerdict], what: str) -> None:
    keys = list(dict.fromkeys(key for verdict in verdicts for key in verdict.choice))
    rows: list[list[str]] = []
    for verdict in verdicts:
        row = [verdict.choice.get(key, "") for key in keys]
        for cell in (verdict.before, verdict.after):
            if cell is None:
                row.append("")
            elif not cell.runs:
                row.append(DOES_NOT_RUN)
            else:  # such as "1,234 ± 0.5% (5)"
                row.append(f"{rate(cell.records_per_s)} ± {cell.spread:.1%} ({len(cell.rates)})")
        row += [figure(verdict.change, "+.1%"), figure(verdict.p, ".2g"), verdict.word]
        rows.append(row)
    heads = ["first", "second", "change", "p"]
    print_table(f"{what}: the second compared with the first", keys, heads, rows, ["verdict"])
