"""The command ``paceline diagnose``."""

import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from framework.cli.arguments import read_keys, split_words
from framework.cli.outcome import RunOutcome, outcome_of, report_failure
from framework.cli.precedence import with_named_recipe
from framework.config.schema import Rule
from framework.config.targets import CONF
from framework.errors import ConfigError, did_you_mean
from framework.system.stopping import undone

RULES = {
    "apply": Rule(bool, number=191),
    "seconds": Rule(float, 1, 3600, number=191),
    "output": Rule(str | None, means="the name of a file", number=191),
}
USAGE = """usage: paceline diagnose [the same overrides as 'paceline train'] [key=value] ...

Measures every part of a run alone and together, and says what limits it and what to do about it.
Of several ranks it first measures all of them, here, on several hosts, or under torchrun and srun.
Missing stores are packed first, as 'paceline train' would do. Training steps are run to measure
them; the weights are thrown away. What is measured appears while it runs.

keys
  apply: false   # true: also measure the best advice against the present settings;
                 # this packs a store if the advice needs one
  seconds: 40    # time for everything but apply=true; steps of several seconds take longer
  output: null   # JSON file for all facts and verdicts

'paceline train --help' lists the groups, their choices and the other keys."""


class Asked(NamedTuple):
    words: list[str]  # overrides of ``train``
    config_dir: str | None
    apply: bool = False
    seconds: float = 40.0
    output: str | None = None


def main(arguments: list[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        print(USAGE)
        return 0
    asked = parse(arguments)
    start = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="paceline-diagnose-"))

    def remove_if_empty(_: object = None) -> None:  # an error leaves a traceback in it for the user
        with suppress(OSError):
            folder.rmdir()

    def action() -> RunOutcome:
        # Hydra and torch are slow to import. Help and misspelled words need neither.
        from framework.commands.diagnose.try_advice import run_diagnosis  # noqa: PLC0415

        return run_diagnosis(asked, arguments, start, folder)

    try:
        with undone(remove_if_empty):
            outcome = outcome_of(action, folder, show_traceback="debug=trace" in arguments)
    finally:
        remove_if_empty()
    return report_failure(outcome)


def parse(arguments: Sequence[str]) -> Asked:
    """Separate our keys from the overrides of ``train``. ConfigError C104, C191 or C192."""
    own, words, config_dir = split_words(arguments, RULES)
    for word in words:
        if word in ("-m", "--multirun"):
            what = "diagnose takes one configuration"
            raise ConfigError(192, word, what, "diagnose one combination at a time")
        if word.startswith("-") or ("=" not in word and not word.startswith("~")):
            hint = did_you_mean(word, tuple(RULES))
            what = f"is neither an override of 'paceline train' nor a key of diagnose{hint}"
            raise ConfigError(192, word, what, "see 'paceline diagnose --help'")
    return Asked(words, config_dir, **read_keys(own, RULES))


def changed(words: Sequence[str], changes: Sequence[str]) -> list[str]:
    """Return ``words`` plus ``changes``, without overridden words and keys of replaced groups."""
    keys = [change.split("=")[0].lstrip("+") for change in changes]
    groups = tuple(f"{key}." for key in keys if (CONF / key).is_dir())
    kept: list[str] = []
    for word in words:
        key = word.split("=")[0].lstrip("+~")
        if key not in keys and not key.startswith(groups):
            kept.append(word)
    return [*with_named_recipe(kept, changes), *changes]
