"""The command ``paceline diagnose``."""

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from framework.cli.allowed import granted
from framework.cli.outcome import RunOutcome, outcome_of, told_code
from framework.cli.paths import CONF
from framework.cli.precedence import with_recipe_said
from framework.commands.own_keys import read_keys, split_words
from framework.config.rule import Rule
from framework.config.targets import did_you_mean
from framework.errors import ConfigError
from framework.system.durable import write_json
from framework.system.stopping import reason, scratch_folder

RULES = {
    "apply": Rule(bool, number=191),
    "seconds": Rule(float, 1, 3600, number=191),
    "output": Rule(str | None, means="the name of a file", number=191),
}
USAGE = """usage: paceline diagnose [the same overrides as 'paceline train'] [key=value] ...

Measures every part of a run alone and together, and says what limits it and what to do about it.
This takes under a minute and trains nothing.

keys
  apply: false   # true: also compare the best advice with the present settings, packing if needed
  seconds: 30    # time for measuring; slow steps take longer
  output: null   # a file that gets all facts and verdicts, as JSON

'paceline train --help' lists the groups, their choices and the other keys."""


class Asked(NamedTuple):
    """The command line: the overrides of ``train``, and the keys of this command."""

    words: list[str]
    config_dir: str | None
    apply: bool = False
    seconds: float = 30.0
    output: str | None = None


def main(arguments: list[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        print(USAGE)
        return 0
    asked = parse(arguments)
    with scratch_folder("paceline-diagnose-") as folder:  # for a traceback
        outcome = outcome_of(
            partial(_diagnose, asked, arguments),
            Path(folder),
            show_traceback="debug=trace" in arguments,
        )
    return told_code(outcome)


def parse(arguments: Sequence[str]) -> Asked:
    """Take the command line apart. A wrong word is ConfigError C104, C191 or C192."""
    own, words, config_dir = split_words(arguments, RULES)
    for word in words:
        if word in ("-m", "--multirun"):
            what = "diagnose takes one configuration"
            raise ConfigError(192, word, what, "diagnose one combination at a time")
        if word.startswith("-") or ("=" not in word and not word.startswith("~")):
            what = f"neither an override of train nor a key{did_you_mean(word, tuple(RULES))}"
            raise ConfigError(192, word, what, "see 'paceline diagnose --help'")
    return Asked(words, config_dir, **read_keys(own, RULES))


def _diagnose(asked: Asked, arguments: list[str]) -> RunOutcome:
    # Hydra and torch are slow to import. Help and misspelled words need neither.
    from framework.cli.compose_config import composed  # noqa: PLC0415

    grant = granted(arguments)
    config, allowed = composed(asked.words, grant, asked.config_dir)
    _check_one_replica(config)
    if asked.output is not None and not Path(asked.output).absolute().parent.is_dir():
        fix = "give the path of a file to write"
        raise ConfigError(191, f"output = {asked.output}", "no such folder", fix)

    import torch  # noqa: PLC0415

    from framework.cli.progress import pack_missing  # noqa: PLC0415
    from framework.commands.diagnose import print_diagnosis  # noqa: PLC0415
    from framework.commands.diagnose.diagnosis import apply, diagnose  # noqa: PLC0415
    from framework.commands.diagnose.measure_parts import Setting  # noqa: PLC0415
    from framework.measure.host import threads_per_rank  # noqa: PLC0415

    def compose(changes: Sequence[str]) -> Setting:
        return Setting(*composed(changed(asked.words, changes), grant, asked.config_dir))

    with reason("stopped{by}: the diagnosis is not complete"):
        torch.set_num_threads(threads_per_rank())  # as a run does
        pack_missing(config, allowed)
        diagnosis = diagnose(compose, asked.seconds, say)
        say("")
        print_diagnosis.show(diagnosis, partial(changed, asked.words), asked.config_dir)
        if asked.apply:
            diagnosis = apply(diagnosis, compose, asked.seconds, say)
            say("")
            print_diagnosis.show_applied(diagnosis.applied)
        if asked.output is not None:
            write_json(Path(asked.output), print_diagnosis.as_json(diagnosis, asked.words))
            print(f"all figures: {asked.output}")
        return RunOutcome(0, "diagnosed")


def _check_one_replica(config: dict[str, Any]) -> None:
    """Check that this process is the only rank."""
    parallel = config["parallel"]
    if "num_processes" not in parallel and "RANK" not in os.environ:
        return
    num_ranks = parallel.get("virtual_ranks", parallel.get("num_processes", 1))
    share = config["batch_size"] // max(1, num_ranks)
    fix = f"diagnose one rank's share: parallel=none batch_size={share}"
    raise ConfigError(190, "parallel", "diagnose measures one replica in this process", fix)


def changed(words: Sequence[str], changes: Sequence[str]) -> list[str]:
    """Replace the word of each changed key, and all words of a group whose choice is changed."""
    keys = [change.split("=")[0].lstrip("+") for change in changes]
    groups = tuple(f"{key}." for key in keys if (CONF / key).is_dir())
    kept: list[str] = []
    for word in words:
        key = word.split("=")[0].lstrip("+~")
        if key not in keys and not key.startswith(groups):
            kept.append(word)
    return [*with_recipe_said(kept, changes), *changes]


def say(text: str) -> None:
    """Show what is being done, on a terminal only, in place of the previous text."""
    if sys.stderr.isatty():
        line = f"{text} ...\r" if text else ""
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
