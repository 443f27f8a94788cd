"""``paceline diagnose [the same overrides as train] [apply=true] [seconds=30] [output=FILE]``."""

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from framework.cli.allowed import granted
from framework.cli.arguments import option
from framework.cli.outcome import RunOutcome, outcome_of
from framework.cli.paths import CONF
from framework.cli.precedence import with_recipe_said
from framework.config.targets import did_you_mean
from framework.errors import ConfigError
from framework.system.durable import write_json
from framework.system.stopping import reason, scratch_folder

SECONDS = 30.0
KEYS = ("apply", "seconds", "output")
USAGE = """usage: paceline diagnose [the same overrides as 'paceline train'] [key=value] ...

Measures every part of that run alone and together, says what limits it, and what to do about it. Under a minute; nothing is trained.

keys
  apply: false   # true: also run the best advice beside the present settings, in turn; a store that it wants is packed
  seconds: 30    # for measuring; slow steps take longer
  output: null   # write all facts and verdicts into this file, as JSON

'paceline train --help' lists the groups, their choices and the other keys."""


class Asked(NamedTuple):
    """The command line, taken apart. ``words``: overrides of ``train``."""

    words: list[str]
    apply: bool
    seconds: float
    output: str | None
    config_dir: str | None


def main(arguments: list[str]) -> int:
    """The command. Returns the exit code."""
    if arguments[:1] == ["-sc"]:
        from framework.commands.train.train import main as complete  # noqa: PLC0415

        return complete(arguments)
    if "--help" in arguments or "-h" in arguments:
        print(USAGE)
        return 0
    asked = taken_apart(arguments)
    with scratch_folder("paceline-diagnose-") as folder:  # where a traceback would go
        outcome = outcome_of(
            partial(_attempt, asked, arguments),
            Path(folder),
            show_traceback="debug=trace" in arguments,
        )
    if outcome.code:
        print(outcome.reason, file=sys.stderr)
    return outcome.code


def taken_apart(arguments: Sequence[str]) -> Asked:
    """ConfigError C191 for a value of our own keys that cannot be, C192 for an option or a word that is none of train's."""
    own = dict(word.split("=", 1) for word in arguments if word.split("=")[0] in KEYS)
    config_dir = option(list(arguments), "--config-dir", "-cd")
    words: list[str] = []
    skip = False
    for word in arguments:
        if skip or word.split("=")[0] in KEYS:
            skip = False
        elif word in ("--config-dir", "-cd"):
            skip = True
        elif not word.startswith(("--config-dir=", "-cd=")):
            words.append(word)
    _check_words(words)
    if config_dir is not None and not Path(config_dir).is_dir():
        raise ConfigError(
            104,
            f"--config-dir {config_dir}",
            "no such folder",
            "give a folder that holds recipes/NAME.yaml",
        )
    return Asked(
        words,
        _flag(own.get("apply", "false")),
        _seconds(own.get("seconds")),
        own.get("output", "").strip("'\"") or None,
        config_dir,
    )


def _check_words(words: Sequence[str]) -> None:
    for word in words:
        if word in ("-m", "--multirun"):
            what = "a diagnosis is of one configuration"
            raise ConfigError(192, word, what, "diagnose one combination after the other")
        if word.startswith("-") or ("=" not in word and not word.startswith("~")):
            close = did_you_mean(word, KEYS)
            raise ConfigError(
                192,
                word,
                f"neither an override of train nor a key{close}",
                "see 'paceline diagnose --help'",
            )


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(191, f"apply = {text}", "not a value it can have", "give true or false")
    return text.lower() == "true"


def _seconds(text: str | None) -> float:
    if text is None:
        return SECONDS
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 1 <= found <= 3600:
        raise ConfigError(191, f"seconds = {text}", "not a value it can have", "give 1 to 3600")
    return found


def _attempt(asked: Asked, arguments: list[str]) -> RunOutcome:
    with reason("stopped{by}: the diagnosis is not complete"):
        return _diagnose(asked, arguments)


def _diagnose(asked: Asked, arguments: list[str]) -> RunOutcome:
    from framework.cli.compose_config import composed  # noqa: PLC0415  # Hydra, then torch: not for --help and typos

    grant = granted(arguments)
    config, allowed = composed(asked.words, grant, asked.config_dir)
    _check_one_replica(config)
    if asked.output is not None and not Path(asked.output).absolute().parent.is_dir():
        raise ConfigError(
            191, f"output = {asked.output}", "no such folder", "give the path of a file to write"
        )

    import torch  # noqa: PLC0415

    from framework.cli.progress import pack_missing  # noqa: PLC0415
    from framework.commands.diagnose.diagnosis import apply, diagnose  # noqa: PLC0415
    from framework.commands.diagnose.measure_parts import Setting  # noqa: PLC0415
    from framework.commands.diagnose.print_diagnosis import as_json, show, show_applied  # noqa: PLC0415
    from framework.measure.host import threads_per_rank  # noqa: PLC0415

    torch.set_num_threads(threads_per_rank())  # as a run does
    pack_missing(config, allowed)

    def compose(changes: Sequence[str]) -> Setting:
        found, packages = composed(changed(asked.words, changes), grant, asked.config_dir)
        return Setting(found, packages)

    found = diagnose(compose, asked.seconds, say)
    say("")
    show(found, partial(changed, asked.words), asked.config_dir)
    if asked.apply:
        found = apply(found, compose, asked.seconds, say)
        say("")
        show_applied(found.applied)
    if asked.output is not None:
        write_json(Path(asked.output), as_json(found, asked.words))
        print(f"all figures: {asked.output}")
    return RunOutcome(0, "diagnosed")


def _check_one_replica(config: dict[str, Any]) -> None:
    """ConfigError C190."""
    if "num_processes" not in config["parallel"] and "RANK" not in os.environ:
        return
    parallel = config["parallel"]
    share = config["batch_size"] // max(
        1, parallel.get("virtual_ranks", parallel.get("num_processes", 1))
    )
    fix = f"diagnose one rank's share: parallel=none batch_size={share}"
    raise ConfigError(190, "parallel", "a diagnosis is of one replica in this process", fix)


def changed(words: Sequence[str], changes: Sequence[str]) -> list[str]:
    """``words`` with ``changes``: a key that is given anew takes the place of the old one, a choice that of all keys of its group."""
    keys = [change.split("=")[0].lstrip("+") for change in changes]
    groups = tuple(f"{key}." for key in keys if (CONF / key).is_dir())
    kept = [
        word
        for word in words
        if (key := word.split("=")[0].lstrip("+~")) not in keys and not f"{key}".startswith(groups)
    ]
    return [*with_recipe_said(kept, changes), *changes]


def say(text: str) -> None:
    """What is being done, on a terminal only; the next line takes its place."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text} ...\r" if text else "\r\x1b[K", end="", file=sys.stderr, flush=True)
