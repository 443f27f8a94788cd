"""What the directory of a run says about its steps: states, reports, and when it was resumed."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from framework.errors import NumericError
from framework.system.json_values import lines_of, mapping, number
from framework.system.run_dir import ENDED, FACTS, REPORTS, SUMMARY, newest_config, read_object
from framework.train.checkpoint import FOLDER, has_stamp, saved_steps

# Keys of a line of metrics.jsonl that stand between the split and the learning rate are means.
FIRST, LAST = "split", "lr"


class LoggedReport(NamedTuple):
    """A report of training.

    Attributes:
        first: The first step that it reports, counted from 1.
        last: The last one.
        means: The loss and the metrics over these steps.
        skipped: The steps of the run so far that left the weights unchanged.
    """

    first: int
    last: int
    means: dict[str, float]
    skipped: int


class Attempt(NamedTuple):
    """A part of a run, from its start or a resume on.

    Attributes:
        start: The number of steps that were taken before.
        config: The name of the file with its configuration.
        ranks: The number of its ranks; None for runs of versions that did not record it.
    """

    start: int
    config: str
    ranks: int | None = None


@dataclass(frozen=True)
class RunHistory:
    """The steps of a run.

    Attributes:
        run_dir: The directory of the run.
        facts: What ``run.json`` holds.
        states: The file of each saved state by its step, the newest step last.
        damaged: The names of states without a whole end.
        reports: The reports of training in their order.
        attempts: The parts of the run in their order.
        last_step: The last step that the run is known to have taken.
        diverged: Whether a loss, a weight or gradients that were not finite ended the run.
    """

    run_dir: Path
    facts: Mapping[str, Any]
    states: Mapping[int, Path]
    damaged: tuple[str, ...]
    reports: tuple[LoggedReport, ...]
    attempts: tuple[Attempt, ...]
    last_step: int
    diverged: bool

    def attempt_at(self, step: int) -> Attempt:
        """Return the part of the run that took the step after ``step``."""
        return [part for part in self.attempts if part.start <= step][-1]


def read_history(run_dir: Path) -> RunHistory:
    """Read what is known of a run's steps. Files that are missing or damaged say nothing."""
    facts = read_object(run_dir / FACTS)
    states = dict(sorted(saved_steps(run_dir).items()))
    reports = tuple(_reports(run_dir / REPORTS))
    ended = read_object(run_dir / ENDED)
    counts = ended.get("step"), read_object(run_dir / SUMMARY).get("steps")
    known = [*states, *(report.last for report in reports), *map(_count, counts)]
    return RunHistory(
        run_dir,
        facts,
        states,
        _damaged(run_dir, states.values()),
        reports,
        attempts=_attempts(facts, newest_config(run_dir).name),
        last_step=max(known, default=0),
        diverged=ended.get("code") == NumericError.exit_code,
    )


def _damaged(run_dir: Path, whole: Collection[Path]) -> tuple[str, ...]:
    """Return the names of states that were cut short. Those that a resume left behind are whole."""
    names: list[str] = []
    for path in sorted(run_dir.joinpath(FOLDER).glob("step-*.pt")):
        with open(path, "rb") as file:
            if path not in whole and not has_stamp(file):
                names.append(path.name)
    return tuple(names)


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


def _reports(path: Path) -> Iterator[LoggedReport]:
    """Yield the reports of training. A step that was reported twice counts as the later says."""
    last = 0
    with suppress(OSError):
        for line in lines_of(path):
            step = _count(line.get("step"))
            if line.get("split") == "train" and step > last:
                yield LoggedReport(last + 1, step, _means(line), _count(line.get("skipped")))
                last = step


def _means(line: Mapping[str, Any]) -> dict[str, float]:
    keys = list(line)
    if LAST not in keys:
        return {}
    values = {name: number(line[name]) for name in keys[keys.index(FIRST) + 1 : keys.index(LAST)]}
    return {name: value for name, value in values.items() if value is not None}


def _attempts(facts: Mapping[str, Any], newest: str) -> tuple[Attempt, ...]:
    """Return the parts of a run; the newest configuration alone if ``run.json`` is damaged."""
    given = facts.get("starts")
    parts: list[Attempt] = []
    for part in map(mapping, given if isinstance(given, list) else []):
        name = part.get("config")
        # a name that leads out of the directory is none: it may come from somebody else
        if isinstance(name, str) and Path(name).name == name:
            ranks = _count(part.get("ranks")) or None
            parts.append(Attempt(_count(part.get("step")), name, ranks))
    if not parts or parts[0].start > 0:
        return (Attempt(0, newest),)
    return tuple(sorted(parts, key=lambda part: part.start))
