"""The command ``paceline bench``: measure a grid of choices, or compare two such files."""

import glob
import json
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hydra.errors import HydraException

from framework.cli.allowed import Grant, granted
from framework.cli.compose_config import composed
from framework.cli.hydra_session import stamp
from framework.cli.own_keys import CONFIG_DIR, CommandWords, read_keys, split_words
from framework.commands.bench import compare_benches as compare
from framework.commands.bench.axes import Axes, axes_of
from framework.commands.bench.grid import BenchCell, BenchPlan, combinations, measurements
from framework.commands.bench.lines import SCHEMA, Bench, collected, read
from framework.commands.bench.print_bench import (
    MeasuringProgress,
    print_bench,
    print_verdicts,
    rule_in_words,
)
from framework.commands.bench.process import measure_cell
from framework.config.rule import Rule
from framework.errors import ConfigError, PacelineError, ResourceError, did_you_mean
from framework.measure.statistics import repeats_needed
from framework.system.stopping import printed, undone

HELP = """usage: paceline bench [key=value] [group=choice,choice,...] ...
       paceline bench compare=[A.jsonl,B.jsonl] [threshold=0.03] [level=0.01]

Measures every combination of the comma-separated values, each in processes of its own:

  paceline bench data=hdf5,lmdb loader=plain,prefetch what=loader
  paceline bench recipes=cifar10 source=FOLDER 'workers.num=range(0,5)' output=workers.jsonl

It takes every override of 'paceline train', with one value or with several: key=a,b  key=range(0,5)
key=choice(a,b)  group=glob(*). Missing stores are packed first, as 'paceline train' would do. A
combination that cannot run is listed with the reason; the others run.

  what=train         training steps; or loader: device batches as fast as they come, host: batches
                     of the source alone, compute: steps that repeat one batch
  repeats=5          processes per combination, in rounds over the grid; each round has another
                     order (seed= of training)
  seconds=2          of a measurement, in eight windows
  burn_in=0.5        seconds before it that do not count
  output=FILE        gets the lines; by default outputs/DATE/TIME-PID-bench/bench.jsonl
  --config-dir DIR   your own folder, as for 'paceline train'

compare=[A.jsonl,B.jsonl], compare=A.jsonl,B.jsonl or compare=A.jsonl B.jsonl says for every
combination whether B is faster or slower than A. Either side may also be the folder of a bench, or
a pattern, ['base-*.jsonl','new-*.jsonl'], whose files count as one. If other programs use the
machine, measure both sides in turn: A B A B.

  threshold=0.03     medians that differ by a smaller share do not differ
  level=0.01         how often chance alone may pass the test (two-sided Mann-Whitney U over
                     repeats; 0.01 needs 5 repeats each)

Exit code 1: something is slower, or runs no more."""

WHATS = ("train", "loader", "host", "compute")


@dataclass(frozen=True)
class BenchOptions:
    what: str = "train"
    repeats: int = 5
    seconds: float = 2.0
    burn_in: float = 0.5
    output: str | None = None
    compare: str | None = None
    threshold: float = 0.03
    level: float = 0.01


RULES = {
    "what": Rule(str, choices=WHATS, number=185),
    "repeats": Rule(int, 1, 1000, number=185),
    "seconds": Rule(float, 0.01, 3600, number=185),
    "burn_in": Rule(float, 0, 3600, number=185),
    "output": Rule(str, means="the name of a file", number=185),
    "compare": Rule(str, means="two names of files", number=185),
    "threshold": Rule(float, 0, 10, number=185),
    "level": Rule(float, 1e-9, 1, number=185),
}
OF_COMPARE = {"compare", "threshold", "level"}


def main(arguments: list[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        print(HELP)
        return 0
    options, words = parse(arguments)
    if options.compare is not None:
        return _compare(options, words.others)
    return _bench(options, words, granted(arguments))


# ---------------------------------------------------------------------------------------- words


def parse(arguments: Sequence[str]) -> tuple[BenchOptions, CommandWords]:
    """Take the command line apart. A wrong word is ConfigError C104, C124, C185 or C186."""
    words = split_words(arguments, RULES)
    own = words.own
    compares = "compare" in own
    for key in (*own, *(["--config-dir"] if words.config_dir is not None and compares else [])):
        if (key in OF_COMPARE) != compares:
            what = "has no effect with compare=" if compares else "needs compare="
            raise ConfigError(186, key, what, "leave it out")
    for word in words.others:
        _check_no_option(word)
    for key in ("output", "compare"):
        if own.get(key) == "":
            raise ConfigError(185, key, "is empty", "give the name of a file")
    options = read_keys(own, RULES)
    if compares:  # ``two_sides`` takes the text apart, with its quotation marks
        options["compare"] = own["compare"]
    return BenchOptions(**options), words


def _check_no_option(word: str) -> None:
    if word in ("-m", "--multirun"):
        what = "bench measures every combination without it"
        raise ConfigError(186, word, what, "leave it out")
    if word.startswith("-"):
        what = f"no such option{did_you_mean(word, CONFIG_DIR)}"
        raise ConfigError(124, word, what, "see --help; keys are given as key=value")


# ---------------------------------------------------------------------------------------- measure


def _bench(options: BenchOptions, words: CommandWords, grant: Grant) -> int:
    if "RANK" in os.environ:
        fix = "start it without torchrun: parallel=ddp starts ranks"
        raise ConfigError(186, "paceline bench", "was started as one of several ranks", fix)
    axes, fixed = axes_of(words.others, words.config_dir)
    for word in fixed:
        if word.startswith(("hydra.run", "hydra.sweep")):
            fix = "leave it out; output= names the file of lines"
            raise ConfigError(186, word, "bench makes no run directory", fix)
    path = Path(options.output or f"outputs/{stamp()}-bench/bench.jsonl")
    if path.exists():
        fix = (
            "choose another name, or remove it; compare=['base-*.jsonl',...] reads several files "
            "as one"
        )
        raise ConfigError(189, f"output = {path}", "exists already", fix)
    cells = _cells(axes, fixed, grant, words.config_dir)
    seed = next(cell.config["seed"] for cell in cells if not cell.illegal)
    plan = BenchPlan(options.what, options.repeats, options.seconds, options.burn_in, seed)
    from framework.run import facts  # noqa: PLC0415  # torch is slow to import

    choices = [cell.choice for cell in cells]
    header = {"bench": SCHEMA, **facts(sys.argv, fixed), **asdict(plan), "cells": choices}
    bench = Bench(header, [])

    def print_known() -> None:
        if bench.lines:
            print_bench(collected([bench]), options.what)
            print(f"lines: {path}")
            print(f"a page of them: paceline report {shlex.quote(str(path))}", flush=True)

    try:
        with undone(printed(print_known)):
            _measure(bench, cells, plan, path)
    finally:
        print_known()
    return _exit_code(bench)


def _cells(axes: Axes, fixed: list[str], grant: Grant, config_dir: str | None) -> list[BenchCell]:
    """Compose every combination and pack its stores. If none can run, raise the first error."""
    from framework.cli.progress import pack_missing  # noqa: PLC0415  # torch is slow to import

    cells: list[BenchCell] = []
    errors: list[PacelineError] = []
    for choice in combinations(axes):
        shown = {key.lstrip("+"): value for key, value in choice.items()}
        words = [*fixed, *(f"{key}={value}" for key, value in choice.items())]
        try:
            cell = BenchCell(shown, *composed(words, grant, config_dir, tuple(RULES)))
            pack_missing(cell.config, cell.allowed)
        except PacelineError as error:
            cell = BenchCell(shown, {}, (), str(error))
            errors.append(error)
        cells.append(cell)
    if len(errors) == len(cells):
        raise errors[0]
    return cells


def _measure(bench: Bench, cells: list[BenchCell], plan: BenchPlan, path: Path) -> None:
    """Measure, and add each line to the file and to ``bench`` at once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "x", encoding="utf-8")  # noqa: SIM115  # closed below
    except OSError as error:
        what = f"cannot write: {error.strerror}"
        raise ResourceError(101, f"output = {path}", what, "choose another place") from error
    with (
        file,
        MeasuringProgress(cells, plan) as progress,
        closing(measurements(cells, plan, measure_cell)) as lines,
    ):
        print(json.dumps(bench.header), file=file, flush=True)
        for line in lines:
            bench.lines.append(line)
            print(json.dumps(line), file=file, flush=True)
            progress.add(line)


def _exit_code(bench: Bench) -> int:
    """Return 0 if some combination ran and none failed in an unforeseen way."""
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


# ---------------------------------------------------------------------------------------- compare


def _compare(options: BenchOptions, rest: list[str]) -> int:
    """Print the verdicts. Return 1 if something is slower or runs no more."""
    rule = compare.DecisionRule(options.threshold, options.level)
    before, after = (_side(pattern) for pattern in two_sides(options.compare or "", rest))
    whats = {bench.header["what"] for bench in (*before, *after)}
    if len(whats) > 1:
        what = f"measured different things: {', '.join(sorted(whats))}"
        raise ConfigError(187, f"compare = {options.compare}", what, "compare like with like")
    verdicts = compare.judged(collected(before), collected(after), rule)
    notes = compare.notes(before, after, rule)
    if noisy := compare.blind(verdicts, rule):
        widest = max(verdict.noise for verdict in noisy)
        notes.append(
            f"within the noise, but {len(noisy)} of {len(verdicts)} spread by up to {widest:.0%} "
            "and would hide a smaller change; measure on an idle machine, or raise repeats="
        )
    print_verdicts(verdicts, whats.pop())
    for note in notes:
        print(f"note: {note}")
    print(rule_in_words(rule))
    if any(verdict.regressed for verdict in verdicts):
        return 1
    if any(verdict.word == compare.UNDECIDED for verdict in verdicts):
        what = f"medians differ, but too few repeats to exclude chance at {rule.level:g}"
        fix = f"measure both with repeats={repeats_needed(rule.level)}, or raise level="
        raise ConfigError(188, "compare", what, fix)
    return 0


def two_sides(text: str, rest: Sequence[str]) -> tuple[str, str]:
    """Return the two names or patterns of ``compare=[A,B]``, ``compare=A,B`` or ``compare=A B``."""
    value = _parsed(text)
    if not isinstance(value, list):
        value = [value]
    names = [str(name.text if isinstance(name, QuotedString) else name) for name in value]
    names += rest
    if len(names) != 2:
        what = f"needs two names and has {len(names)}"
        raise ConfigError(
            187, f"compare = {' '.join(names)}", what, "give compare=[A.jsonl,B.jsonl]"
        )
    return names[0], names[1]


def _parsed(text: str) -> Any:
    """Return the value of ``compare=`` as Hydra reads it; for a sweep, the list of its values."""
    try:
        override = OverridesParser.create().parse_override(f"compare={text}")
        if override.is_discrete_sweep():
            return list(override.sweep_iterator())
        return override.value()
    except HydraException as error:
        quote = "give compare=[A.jsonl,B.jsonl]; quote names: 'compare=[\"a b.jsonl\",c.jsonl]'"
        raise ConfigError(187, f"compare = {text}", "cannot be read", quote) from error


def _side(pattern: str) -> list[Bench]:
    """Read a file, the file of a folder, or all files that match a pattern."""
    paths = sorted(glob.glob(pattern, recursive=True))
    if os.path.exists(pattern):
        paths = [pattern]
    if not paths:
        fix = "give files that 'paceline bench' has written"
        raise ConfigError(187, f"compare = {pattern}", "no such file", fix)
    files = [Path(path, "bench.jsonl") if os.path.isdir(path) else Path(path) for path in paths]
    return [read(file) for file in files]
