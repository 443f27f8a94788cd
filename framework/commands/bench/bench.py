"""The command ``paceline bench``: measure a grid of choices, or compare two such files."""

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from framework.cli import explain, hydra_app, run_ranks
from framework.cli.arguments import CONFIG_DIR, CommandWords, Grant, granted, read_keys, split_words
from framework.cli.hydra_session import hydra_session, stamp
from framework.cli.tables import counted_bar, plural, rate
from framework.commands.bench import bench_lines
from framework.commands.bench.bench_lines import Bench, Choice, label
from framework.config.schema import Rule
from framework.errors import ConfigError, PacelineError, ResourceError, did_you_mean, printable, say
from framework.run import facts
from framework.system.stopping import message_if_stopped
from framework.trials.trial_process import TrialSetting, repeated

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
    "what": Rule(str, choices=("train", "loader", "host", "compute"), number=185),
    "repeats": Rule(int, 1, 1000, number=185),
    "seconds": Rule(float, 0.01, 3600, number=185),
    "burn_in": Rule(float, 0, 3600, number=185),
    "output": Rule(str, means="the name of a file", number=185),
    "compare": Rule(str, means="two names of files", number=185),
    "threshold": Rule(float, 0, 10, number=185),
    "level": Rule(float, 1e-9, 1, number=185),
}
START_S = 4.0  # until a process measures; measured on two cores
Axes = dict[str, list[str]]


def main(arguments: list[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        print(HELP)
        return 0
    options, words = parse(arguments)
    if options.compare is not None:
        rule = bench_lines.DecisionRule(options.threshold, options.level)
        return bench_lines.compare(*two_sides(options.compare, words.others), rule)
    return _measure(options, words, granted(arguments))


def parse(arguments: Sequence[str]) -> tuple[BenchOptions, CommandWords]:
    """Take the command line apart. A wrong word is ConfigError C104, C124, C185 or C186."""
    words = split_words(arguments, RULES)
    own = words.own
    compares = "compare" in own
    for key in (*own, *(["--config-dir"] if words.config_dir is not None and compares else [])):
        if (key in ("compare", "threshold", "level")) != compares:
            what = "has no effect with compare=" if compares else "needs compare="
            raise ConfigError(186, key, what, "leave it out")
    for word in words.others:
        if word in ("-m", "--multirun"):
            what = "bench measures every combination without it"
            raise ConfigError(186, word, what, "leave it out")
        if word.startswith("-"):
            what = f"no such option{did_you_mean(word, CONFIG_DIR)}"
            raise ConfigError(124, word, what, "see --help; keys are given as key=value")
    for key in ("output", "compare"):
        if own.get(key) == "":
            raise ConfigError(185, key, "is empty", "give the name of a file")
    options = read_keys(own, RULES)
    if compares:  # ``two_sides`` takes the text apart, with its quotation marks
        options["compare"] = own["compare"]
    return BenchOptions(**options), words


def axes_of(words: Sequence[str], config_dir: str | None = None) -> tuple[Axes, list[str]]:
    """Split a command line into swept keys with their values, and the other words.

    A recipe's own ``hydra.sweeper.params`` count too, unless the same key is typed. ConfigError
    C100 for what Hydra cannot read, C186 for a sweep that is no list of values.
    """
    with explain.explained("train", words, config_dir), hydra_session("train", config_dir) as hydra:
        parser = OverridesParser.create(hydra.config_loader)

        def by_key(texts: Sequence[str]) -> dict[str, Override]:
            return {each.get_key_element(): each for each in parser.parse_overrides(list(texts))}

        def fixed_of(overrides: Mapping[str, Override]) -> list[str]:
            fixed = [each for each in overrides.values() if not each.is_sweep_override()]
            return [str(each.input_line) for each in fixed]

        typed = by_key(words)
        fixed = fixed_of(typed)
        params: dict[str, Any] = {}
        with suppress(Exception):  # composing each combination says what is wrong
            config = compose("train", fixed, return_hydra_config=True)
            sweeper: Any = OmegaConf.to_container(config.hydra.sweeper)
            params = sweeper.get("params") or {}
        of_file = by_key([f"{key}={value}" for key, value in params.items()])
        of_file = {key: override for key, override in of_file.items() if key not in typed}
        axes: Axes = {}
        for key, override in {**of_file, **typed}.items():
            if not override.is_sweep_override():
                continue
            if override.is_hydra_override() or not override.is_discrete_sweep():
                what = "is no list of values for a key of training"
                fix = "sweep key=a,b or key=range(0,4)"
                raise ConfigError(186, str(override.input_line), what, fix)
            axes[key] = list(override.sweep_string_iterator())
        return axes, [*fixed_of(of_file), *fixed]


def combinations(axes: Mapping[str, Sequence[str]]) -> list[Choice]:
    """Return every combination once, with the last key changing fastest."""
    values = [dict.fromkeys(choices) for choices in axes.values()]
    return [dict(zip(axes, chosen, strict=True)) for chosen in product(*values)]


def _measure(options: BenchOptions, words: CommandWords, grant: Grant) -> int:
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
        fix = "choose another name, or remove it; compare=['base-*.jsonl',...] reads several files"
        raise ConfigError(189, f"output = {path}", "exists already", fix)
    choices, settings, errors = _settings(axes, fixed, grant, words.config_dir)
    times = (options.seconds, options.burn_in, options.repeats, settings[0].config["seed"])
    plan = dict(zip(("seconds", "burn_in", "repeats", "seed"), times, strict=True))
    plan |= {"what": options.what, "cells": choices}
    bench = Bench({"bench": bench_lines.SCHEMA, **facts(sys.argv, fixed), **plan}, [])

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "x", encoding="utf-8")  # noqa: SIM115  # closed below
    except OSError as error:
        what = f"cannot write: {error.strerror}"
        raise ResourceError(101, f"output = {path}", what, "choose another place") from error
    by_name = {label(choice): choice for choice in choices}
    total = options.repeats * len(settings)
    about = timedelta(seconds=round(total * (START_S + options.burn_in + options.seconds)))
    many = f"{plural(len(settings), 'combination')}, {plural(options.repeats, 'repeat')} each"
    say(f"{many}: about {about}", sys.stderr)
    num_done = 0
    try:
        with (
            message_if_stopped(f"stopped{{by}}: the lines so far are in {path}"),
            file,
            counted_bar("measuring", total) as update,
            closing(repeated(settings, options.what, *times)) as measurements,
        ):

            def add(line: bench_lines.Line) -> None:
                bench.lines.append(line)
                print(json.dumps(line), file=file, flush=True)

            print(json.dumps(bench.header), file=file, flush=True)
            for name, error in errors.items():
                add({"cell": by_name[name], "illegal": str(error)})
            for repeat, number, measured in measurements:
                choice = by_name[settings[number].name]
                if measured.error is not None:
                    errors[settings[number].name] = measured.error
                    result = str(measured.error)
                    add({"cell": choice, "illegal": result})
                    num_done += options.repeats - repeat  # it is not tried again
                else:
                    num_done += 1
                    result = f"{rate(measured.records_per_s)} records/s"
                    figures = {
                        "records_per_s": measured.records_per_s,
                        "windows": measured.windows,
                        "spans_s": measured.spans_s,
                        "yardstick_per_s": measured.yardstick_per_s,
                    }
                    add({"cell": choice, "repeat": repeat, **figures})
                shown = bench_lines.named(choice, result, "  ")
                update(completed=num_done, description=printable(shown))
                if not sys.stderr.isatty():
                    say(f"{num_done}/{total}  {shown}", sys.stderr)
    finally:
        if bench.lines:
            bench_lines.print_bench(bench_lines.collected([bench]), options.what)
            print(f"lines: {path}")
            print(f"a page of them: paceline report {shlex.quote(str(path))}", flush=True)
    failures = list(errors.values())
    if any("repeat" in line for line in bench.lines):
        failures = [error for error in failures if error.args[0] == 185]  # unforeseen
    if not failures:
        return 0
    print(failures[0], file=sys.stderr)
    return failures[0].exit_code


def _settings(
    axes: Axes, fixed: Sequence[str], grant: Grant, config_dir: str | None
) -> tuple[list[Choice], list[TrialSetting], dict[str, PacelineError]]:
    """Pack the stores. Return all choices, the settings that can run, and the errors by name."""
    choices: list[Choice] = []
    settings: list[TrialSetting] = []
    errors: dict[str, PacelineError] = {}
    for choice in combinations(axes):
        shown = {key.lstrip("+"): value for key, value in choice.items()}
        choices.append(shown)
        words = [*fixed, *(f"{key}={value}" for key, value in choice.items())]
        try:
            config, allowed = hydra_app.composed(words, grant, config_dir, tuple(RULES))
            run_ranks.pack_missing(config, allowed)
            settings.append(TrialSetting(label(shown), config, allowed))
        except PacelineError as error:
            errors[label(shown)] = error
    if not settings:
        raise next(iter(errors.values()))
    return choices, settings, errors


def two_sides(text: str, rest: Sequence[str]) -> tuple[str, str]:
    """Return the two names or patterns of ``compare=[A,B]``, ``compare=A,B`` or ``compare=A B``."""
    names = [name.strip(" '\"") for name in text.strip("[]").split(",")]
    names += rest
    if len(names) != 2:
        what = f"needs two names and has {len(names)}"
        fix = "give compare=[A.jsonl,B.jsonl]"
        raise ConfigError(187, f"compare = {' '.join(names)}", what, fix)
    return names[0], names[1]
