"""The command ``paceline plan``."""

import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from framework.cli.allowed import granted
from framework.cli.outcome import RunOutcome, outcome_of, told_code
from framework.commands.diagnose.diagnose import remove_if_empty
from framework.commands.own_keys import check_output, read_keys, split_words
from framework.commands.plan.planned_hosts import KEYS as HOST_KEYS
from framework.commands.plan.planned_hosts import planned_hosts
from framework.config.rule import Rule
from framework.config.targets import did_you_mean
from framework.errors import ConfigError
from framework.system.durable import write_json
from framework.system.stopping import message_if_stopped, scratch_folder, undone

RULES = {
    "cluster": Rule(str | None, means="the name of a YAML file", number=399),
    "run": Rule(str | None, means="the directory of a run, or of two", number=399),
    "seconds": Rule(float, 2, 3600, number=399),
    "output": Rule(str | None, means="the name of a file", number=399),
}
USAGE = """usage: paceline plan [the same overrides as 'paceline train'] [key=value] ...
       paceline plan run=DIR [key=value] ...

Forecasts time, memory, disk, reading and network traffic of a run on other ranks and hosts. It
trains for some seconds here, with one rank and with as many as this machine has cores for, or takes
the figures of finished runs. It refuses to guess what was not measured, and says how to measure it.

keys
  hosts: 1            # hosts, all alike
  ranks_per_host: 1   # ranks on each
  cores:              # of each host; those of this one
  memory:             # of each host, as in 64G; that of this one
  disk: null          # what a host reads per second, as in 500M/s
  network: null       # bits per second between hosts, as in 10G
  gpu: null           # the name of each rank's GPU, as in H100
  cluster: null       # a YAML file with any of the keys above
  run: null           # take the figures of finished runs: DIR, or DIR,DIR of one rank and more
  seconds: 20         # time for measuring
  output: null        # JSON file for all figures"""


class PlanWords(NamedTuple):
    """The command line."""

    words: list[str]
    config_dir: str | None
    hosts: dict[str, str]
    cluster: str | None = None
    run: str | None = None
    seconds: float = 20.0
    output: str | None = None


def main(arguments: list[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        print(USAGE)
        return 0
    asked = parse_plan(arguments)
    log_folder = Path(tempfile.mkdtemp(prefix="paceline-plan-"))
    try:
        with undone(lambda _: remove_if_empty(log_folder)):
            action = partial(_plan, asked, arguments)
            outcome = outcome_of(action, log_folder, show_traceback="debug=trace" in arguments)
    finally:
        remove_if_empty(log_folder)
    return told_code(outcome)


def parse_plan(arguments: Sequence[str]) -> PlanWords:
    """Separate our keys from the overrides of ``train``.

    Raises:
        ConfigError: C104 for a wrong ``--config-dir``, C399 for a wrong value, or for a word that
            is neither a key nor an override.
    """
    own, words, config_dir = split_words(arguments, (*RULES, *HOST_KEYS))
    for word in words:
        if word.startswith("-") or ("=" not in word and not word.startswith("~")):
            hint = did_you_mean(word, (*RULES, *HOST_KEYS))
            what = f"is neither an override of 'paceline train' nor a key of plan{hint}"
            raise ConfigError(399, word, what, "see 'paceline plan --help'")
    hosts = {key: own.pop(key) for key in HOST_KEYS if key in own}
    asked = PlanWords(words, config_dir, hosts, **read_keys(own, RULES))
    check_output(asked.output, 399)
    return asked


def _plan(asked: PlanWords, arguments: list[str]) -> RunOutcome:
    with message_if_stopped("stopped{by}: nothing was forecast"):
        # Hydra and torch are slow to import. Help and misspelled words need neither.
        from framework.commands.plan.forecast import forecast  # noqa: PLC0415
        from framework.commands.plan.print_plan import plan_json, show_plan  # noqa: PLC0415

        hosts = planned_hosts(asked.hosts, asked.cluster)
        if asked.run is not None:
            runs, batch_size = _finished(asked, hosts)
        else:
            runs, batch_size = _measured(asked, arguments, hosts)
        plan = forecast(hosts, runs, batch_size)
    show_plan(hosts, runs, plan)
    if asked.output is not None:
        write_json(Path(asked.output), plan_json(hosts, runs, plan))
        print(f"all figures: {asked.output}")
    return RunOutcome(0, "planned")


def _finished(asked: PlanWords, hosts: Any) -> tuple[list[Any], int]:
    """Return what finished runs measured, and the batch size of the planned run."""
    from framework.commands.plan.measured_run import measured_run  # noqa: PLC0415

    assert asked.run is not None
    if asked.words:
        what = "stands beside run=, which has its own configuration"
        raise ConfigError(399, asked.words[0], what, "leave one of them out")
    runs = [measured_run(Path(path)) for path in asked.run.split(",")]
    runs.sort(key=lambda run: run.ranks)
    return runs, runs[-1].rank_batch * hosts.ranks


def _measured(asked: PlanWords, arguments: list[str], hosts: Any) -> tuple[list[Any], int]:
    """Measure short runs. Return them, and the batch size of the planned run."""
    from framework.cli.compose_config import composed  # noqa: PLC0415
    from framework.cli.progress import pack_missing  # noqa: PLC0415
    from framework.commands.plan.measure_ranks import (  # noqa: PLC0415
        check_parallel,
        most_ranks,
        planned_batch_size,
        short_runs,
    )

    own_keys = (*RULES, *HOST_KEYS)
    config, allowed = composed(asked.words, granted(arguments), asked.config_dir, own_keys)
    check_parallel(config, hosts)
    together = most_ranks(hosts)
    pack_missing(config, allowed)
    ranks = " and ".join(map(str, sorted({1, together})))
    if sys.stderr.isatty():
        print(f"training for {asked.seconds:g} s, with ranks: {ranks}", file=sys.stderr)
    with scratch_folder("paceline-plan-") as folder:
        runs = short_runs(asked.words, asked.config_dir, config, hosts, asked.seconds, folder)
    return runs, planned_batch_size(config, hosts)
