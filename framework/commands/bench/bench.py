"""``paceline bench``: a grid of choices measured, each in processes of its own, and two such files compared."""

import glob
import json
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hydra.errors import HydraException

from framework.cli.allowed import Grant, granted
from framework.cli.arguments import option
from framework.cli.compose_config import composed
from framework.cli.hydra_app import run_app
from framework.cli.hydra_session import stamp
from framework.cli.sweep import Axes, axes_of
from framework.commands.bench.grid import BenchCell, BenchPlan, combinations
from framework.commands.bench.lines import SCHEMA, Bench, Line, collected, read
from framework.commands.bench.measure_cell import measurements
from framework.commands.bench.print_bench import (
    MeasuringProgress,
    print_bench,
    rule_in_words,
    verdict_table,
    wide_console,
)
from framework.commands.bench.process import measure_cell
from framework.config.targets import did_you_mean
from framework.errors import ConfigError, PacelineError, ResourceError
from framework.system.stopping import printed, undone

HELP = """usage: paceline bench [key=value] [group=choice,choice,...] ...
       paceline bench compare=[A.jsonl,B.jsonl] [threshold=0.03] [level=0.01]

Measures every combination of the comma-separated values, each in processes of its own:

  paceline bench data=hdf5,lmdb loader=plain,prefetch what=loader
  paceline bench recipes=cifar10 source=FOLDER 'workers.num=range(0,5)' output=workers.jsonl

Every override of 'paceline train' may stand there, once or several values of it: key=a,b  key=range(0,5)  key=choice(a,b)  group=glob(*).
Stores that are missing are packed first, as 'paceline train' would. A combination that cannot run is told with its reason; the others run.

  what=train         whole training steps; or loader: device batches as fast as they come, host: the source alone,
                     compute: steps on one batch for ever
  repeats=5          processes per combination, in rounds over the grid, each round in another order (seed= of training)
  seconds=2          of one measurement, in eight windows
  burn_in=0.5        seconds before it that do not count
  output=FILE        where the lines go; without it outputs/DATE/TIME-PID-bench/bench.jsonl
  --config-dir DIR   your own folder, as for 'paceline train'

compare=[A.jsonl,B.jsonl], or compare=A.jsonl,B.jsonl, or compare=A.jsonl B.jsonl: is B faster or slower than A, combination by combination?
Either side may be the directory of a bench, or a pattern, ['base-*.jsonl','new-*.jsonl'], whose files count as one: measure both sides in
turn, A B A B, where the machine is not quite yours.

  threshold=0.03     a difference of medians up to this share is no difference
  level=0.01         how often chance alone may pass the test (exact Mann-Whitney U over repeats, two-sided; 0.01 needs 5 repeats each)

Exit code 1: something is slower, or runs no more."""

WHATS = ("train", "loader", "host", "compute")


@dataclass(frozen=True)
class Own:
    """The command's own keys. None: not given."""

    what: str = "train"
    repeats: int = 5
    seconds: float = 2.0
    burn_in: float = 0.5
    output: str | None = None
    compare: str | None = None
    threshold: float = 0.03
    level: float = 0.01


KEYS = tuple(Own.__dataclass_fields__)
OF_COMPARE = {"compare", "threshold", "level"}
LIMITS: dict[str, tuple[type[int] | type[float], float, float]] = {  # key: type, least, most
    "repeats": (int, 1, 1000),
    "seconds": (float, 0.01, 3600),
    "burn_in": (float, 0, 3600),
    "threshold": (float, 0, 10),
    "level": (float, 1e-9, 1),
}


def main(arguments: list[str]) -> int:
    """The command. Returns the exit code."""
    if arguments[:1] in (["-sc"], ["--shell-completion"]):
        return run_app("train", arguments, lambda _: 0)  # what can be swept is what can be trained
    if "--help" in arguments or "-h" in arguments:
        print(HELP)
        return 0
    own, rest = taken(arguments)
    return _compare(own, rest) if own.compare is not None else _bench(own, rest, granted(arguments))


# ------------------------------------------------------------------------------------------------------------------ words


def taken(arguments: Sequence[str]) -> tuple[Own, list[str]]:
    """The command's own keys, and the other words. ConfigError C185 for a value that cannot be, C186 for keys that do not go together."""
    given: dict[str, Any] = {}
    rest: list[str] = []
    for word in arguments:
        key, equals, value = word.partition("=")
        if equals and key in KEYS:
            given[key] = _value(key, value)
        else:
            rest.append(word)
    compares = "compare" in given
    for key in given:
        if (key in OF_COMPARE) != compares:
            what = (
                "has no meaning beside compare="
                if compares
                else "has a meaning beside compare= only"
            )
            raise ConfigError(186, key, what, "leave it out")
    return Own(**given), rest


def _value(key: str, text: str) -> Any:
    if key == "what" and text not in WHATS:
        raise ConfigError(
            185,
            f"what = {text}",
            f"nothing that is measured{did_you_mean(text, WHATS)}",
            f"choose {', '.join(WHATS)}",
        )
    if key in ("output", "compare") and not text:
        raise ConfigError(185, key, "is empty", "give the name of a file")
    if key not in LIMITS:
        return text.strip("'\"") if key == "output" else text
    kind, least, most = LIMITS[key]
    try:
        value = kind(text)
    except ValueError:
        value = -1
    if not least <= value <= most:
        raise ConfigError(
            185,
            f"{key} = {text}",
            "not a value it can have",
            f"give {kind.__name__}, {least:g} to {most:g}",
        )
    return value


def _split(words: list[str]) -> tuple[list[str], str | None]:
    """The overrides, and the folder that ``--config-dir`` names. ConfigError C124 for another option, C104 for a folder that is not there."""
    config_dir, names = option(words, "--config-dir", "-cd"), ("--config-dir", "-cd")
    kept = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if before not in names and word.split("=")[0] not in names
    ]
    for word in kept:
        if word in ("-m", "--multirun"):
            raise ConfigError(
                186, word, "bench measures every combination without it", "leave it out"
            )
        if word.startswith("-"):
            raise ConfigError(
                124,
                word,
                f"no such option{did_you_mean(word, names)}",
                "see --help; keys are given as key=value",
            )
    if config_dir is not None and not Path(config_dir).is_dir():
        raise ConfigError(
            104,
            f"--config-dir {config_dir}",
            "no such folder",
            "give a folder that holds recipes/NAME.yaml",
        )
    return kept, config_dir


# ---------------------------------------------------------------------------------------------------------------- measure


def _bench(own: Own, rest: list[str], grant: Grant) -> int:
    if "RANK" in os.environ:
        raise ConfigError(
            186,
            "paceline bench",
            "started as one of several ranks",
            "start it without torchrun: parallel=ddp starts ranks",
        )
    words, config_dir = _split(rest)
    axes, fixed = axes_of(words)
    if ignored := [word for word in fixed if word.startswith(("hydra.run", "hydra.sweep"))]:
        raise ConfigError(
            186,
            ignored[0],
            "bench makes no run directory",
            "leave it out; output= says where the lines go",
        )
    path = _free(own.output)
    cells = _prepared(_cells(axes, fixed, grant, config_dir))
    legal = [cell for cell in cells if not cell.illegal]
    plan = BenchPlan(own.what, own.repeats, own.seconds, own.burn_in, legal[0].config["seed"])
    bench = Bench(_header(plan, fixed, cells), [])

    def tell() -> None:
        if bench.lines:
            print_bench(collected([bench]), own.what)
            print(
                f"lines: {path}\na page of them: paceline report {shlex.quote(str(path))}",
                flush=True,
            )

    try:
        with undone(printed(tell)):
            _measure(bench, cells, plan, path)
    finally:
        tell()
    return _exit_code(bench)


def _free(output: str | None) -> Path:
    """Where the lines go. ConfigError C189: what was measured is not written over."""
    path = Path(output or f"outputs/{stamp()}-bench/bench.jsonl")
    if path.exists():
        fix = "choose another name, or remove it; compare=['base-*.jsonl',...] takes several files as one"
        raise ConfigError(189, f"output = {path}", "is there already", fix)
    return path


def _cells(axes: Axes, fixed: list[str], grant: Grant, config_dir: str | None) -> list[BenchCell]:
    """Every combination, composed and checked. Raises the first one's error where none can be."""
    cells: list[BenchCell] = []
    errors: list[PacelineError] = []
    for choice in combinations(axes):
        shown = {key.lstrip("+"): value for key, value in choice.items()}
        try:
            config, allowed = composed(
                [*fixed, *(f"{key}={value}" for key, value in choice.items())], grant, config_dir
            )
            cells.append(BenchCell(shown, config, allowed))
        except PacelineError as error:
            cells.append(BenchCell(shown, {}, (), str(error)))
            errors.append(error)
    if len(errors) == len(cells):
        raise errors[0]
    return cells


def _prepared(cells: list[BenchCell]) -> list[BenchCell]:
    """Their stores packed, where they are missing, before anything is timed. Raises the first one's error where none could be."""
    from framework.cli.progress import pack_missing  # noqa: PLC0415

    errors: list[PacelineError] = []
    for number, cell in enumerate(cells):
        try:
            if not cell.illegal:
                pack_missing(cell.config, cell.allowed)
        except PacelineError as error:
            cells[number] = replace(cell, illegal=str(error))
            errors.append(error)
    if all(cell.illegal for cell in cells):
        raise errors[0]
    return cells


def _header(plan: BenchPlan, fixed: list[str], cells: list[BenchCell]) -> Line:
    """The first line."""
    from framework.run import facts  # noqa: PLC0415  # loads torch

    return {
        "bench": SCHEMA,
        **facts(sys.argv, fixed),
        **asdict(plan),
        "cells": [cell.choice for cell in cells],
    }


def _measure(bench: Bench, cells: list[BenchCell], plan: BenchPlan, path: Path) -> None:
    """Measure; each line is in the file, and in ``bench``, as soon as it is known."""
    with _created(path) as file, MeasuringProgress(cells, plan) as progress:
        _write(file, bench.header)
        with closing(measurements(cells, plan, measure_cell)) as lines:
            for line in lines:
                bench.lines.append(line)
                _write(file, line)
                progress.tell(line)


def _created(path: Path) -> IO[str]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "x", encoding="utf-8")
    except OSError as error:
        raise ResourceError(
            101, f"output = {path}", f"cannot write: {error.strerror}", "choose another place"
        ) from error


def _write(file: IO[str], line: Line) -> None:
    file.write(json.dumps(line) + "\n")
    file.flush()


def _exit_code(bench: Bench) -> int:
    """A combination that cannot run is an answer, where others can; one that broke in a way nobody foresaw is an error."""
    illegal = [line["illegal"] for line in bench.lines if "illegal" in line]
    if len(illegal) < len(bench.lines):
        illegal = [reason for reason in illegal if reason.startswith("error[R185]")]
    if not illegal:
        return 0
    print(illegal[0], file=sys.stderr)
    return next(
        kind.exit_code
        for kind in PacelineError.__subclasses__()
        if illegal[0].startswith(f"error[{kind.letter}")
    )


# ---------------------------------------------------------------------------------------------------------------- compare


def _compare(own: Own, rest: list[str]) -> int:
    """Prints verdicts. 1: something is slower, or runs no more."""
    from framework.commands.bench.compare_benches import UNDECIDED, Rule, blind, judged, notes  # noqa: PLC0415
    from framework.measure.statistics import repeats_needed  # noqa: PLC0415

    rule = Rule(own.threshold, own.level)
    before, after = (_side(pattern) for pattern in two_sides(own.compare or "", rest))
    whats = {bench.header["what"] for bench in (*before, *after)}
    if len(whats) > 1:
        raise ConfigError(
            187,
            f"compare = {own.compare}",
            f"measured different things: {', '.join(sorted(whats))}",
            "compare like with like",
        )
    verdicts = judged(collected(before), collected(after), rule)
    console = wide_console()
    console.print(verdict_table(verdicts, whats.pop()))
    for note in notes(before, after, rule):
        console.print(f"note: {note}", soft_wrap=True, markup=False)
    if noisy := blind(verdicts, rule):
        widest = max(verdict.noise for verdict in noisy)
        fix = "a change smaller than that could not be seen; measure where nothing else runs, or more repeats="
        console.print(
            f"note: within the noise, but {len(noisy)} of {len(verdicts)} spread by up to {widest:.0%}: {fix}",
            soft_wrap=True,
        )
    console.print(rule_in_words(rule), soft_wrap=True)
    if any(verdict.regressed for verdict in verdicts):
        return 1
    if any(verdict.word == UNDECIDED for verdict in verdicts):
        what = f"medians differ, but too few repeats to tell it from chance at {rule.level:g}"
        raise ConfigError(
            188,
            "compare",
            what,
            f"measure both with repeats={repeats_needed(rule.level)}, or raise level=",
        )
    return 0


def two_sides(text: str, rest: Sequence[str]) -> tuple[str, str]:
    """The two names or patterns of ``compare=[A,B]``, ``compare=A,B`` or ``compare=A B``. ConfigError C187."""
    fix = "give compare=[A.jsonl,B.jsonl]"
    try:
        found = OverridesParser.create().parse_override(f"compare={text}")
        value = list(found.sweep_iterator()) if found.is_discrete_sweep() else found.value()
    except HydraException as error:
        raise ConfigError(
            187,
            f"compare = {text}",
            "cannot be read",
            f"{fix}; quote names: 'compare=[\"a b.jsonl\",c.jsonl]'",
        ) from error
    names = [
        str(name.text if isinstance(name, QuotedString) else name)
        for name in (value if isinstance(value, list) else [value])
    ]
    names += rest
    if len(names) != 2:
        raise ConfigError(
            187, f"compare = {' '.join(names)}", f"{len(names)} names where two should stand", fix
        )
    return names[0], names[1]


def _side(pattern: str) -> list[Bench]:
    """The file of that name, or in the directory of that name, or all files that the pattern matches."""
    paths = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
    if not paths:
        raise ConfigError(
            187,
            f"compare = {pattern}",
            "no such file",
            "give files that 'paceline bench' has written",
        )
    return [
        read(Path(path, "bench.jsonl") if os.path.isdir(path) else Path(path)) for path in paths
    ]
