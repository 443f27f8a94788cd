"""The command ``paceline diagnose``."""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from framework.cli.allowed import granted
from framework.cli.arguments import check_output, config_flags, option, read_keys, split_words
from framework.cli.outcome import RunOutcome, outcome_of, told_code
from framework.cli.precedence import with_recipe_said
from framework.config.paths import CONF
from framework.config.rule import Rule
from framework.config.schema import LOADER
from framework.errors import ConfigError, did_you_mean, say
from framework.parallel.processes import rank_environment
from framework.system.durable import write_json
from framework.system.stopping import message_if_stopped, undone

RULES = {
    "apply": Rule(bool, number=191),
    "seconds": Rule(float, 1, 3600, number=191),
    "output": Rule(str | None, means="the name of a file", number=191),
}
LEAST_LEFT = 0.4  # of the seconds, if importing and packing took longer than the rest
RANKS_SHARE = 0.5  # of the seconds, for measuring all ranks together
STOPPED = "stopped{by}: the diagnosis is not complete"
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
    """The command line: the overrides of ``train``, and the keys of this command."""

    words: list[str]
    config_dir: str | None
    apply: bool = False
    seconds: float = 40.0
    output: str | None = None


def main(arguments: list[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        print(USAGE)
        return 0
    asked = parse(arguments)
    folder = Path(tempfile.mkdtemp(prefix="paceline-diagnose-"))

    def remove_if_empty(_: object = None) -> None:  # an error leaves a traceback in it for the user
        with suppress(OSError):
            folder.rmdir()

    action = partial(_diagnose, asked, arguments, time.perf_counter(), folder)
    try:
        with undone(remove_if_empty):
            outcome = outcome_of(action, folder, show_traceback="debug=trace" in arguments)
    finally:
        remove_if_empty()
    return told_code(outcome)


def parse(arguments: Sequence[str]) -> Asked:
    """Separate our keys from the overrides of ``train``.

    Raises:
        ConfigError: C104 for a wrong ``--config-dir``, C191 for a wrong value, C192 for a word that
            is neither a key nor an override.
    """
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


def _diagnose(asked: Asked, arguments: list[str], start: float, folder: Path) -> RunOutcome:
    # Hydra and torch are slow to import. Help and misspelled words need neither.
    from framework.cli.compose_config import composed  # noqa: PLC0415

    if option(arguments, "parallel.num_nodes") is None:
        os.environ.update(rank_environment(os.environ))  # of a task of srun
    if os.environ.get("RANK", "0") != "0":
        from framework.commands.diagnose.measure_run import measured_as_rank  # noqa: PLC0415

        measured_as_rank(None, asked.seconds)  # rank 0 says how long
        return RunOutcome(0, "measured")
    config, allowed = composed(asked.words, granted(arguments), asked.config_dir, tuple(RULES))
    check_output(asked.output, 191)
    parallel = config["parallel"]
    under_launcher = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    num_ranks = parallel.get("num_processes", 1) * parallel.get("num_nodes", 1)
    if under_launcher:
        num_ranks = int(os.environ["WORLD_SIZE"])
        if "num_processes" not in parallel:
            what = f"started as one of {num_ranks} ranks, each of which is alone"
            raise ConfigError(190, "parallel", what, "add parallel=ddp, or leave out the launcher")
    with message_if_stopped(STOPPED):
        ranks: dict[str, Any] = {}
        if num_ranks > 1:
            from framework.commands.diagnose.measure_run import RanksFailed  # noqa: PLC0415

            try:
                known = _diagnose_ranks(asked, start, folder, config, allowed)
            except RanksFailed as failed:
                return failed.args[0]
            if known is None or known["cause"]:
                return RunOutcome(0, "diagnosed")
            ranks = {"ranks": known}
            share = ["parallel=none"]  # the overrides that make one process do what a rank does
            if config["data"]["source"]["_target_"] != LOADER:  # its batches come as they are
                size = config["batch_size"] // num_ranks
                if config["rank_batch_size"] is not None:
                    size = config["rank_batch_size"] * config["accumulate"]
                share += [f"batch_size={max(1, size)}", "rank_batch_size=null"]
            words = " ".join(share)
            say(f"no rank holds up the others; what one of them does alone ({words}):\n")
            asked = asked._replace(words=changed(asked.words, share))
        _diagnose_alone(asked, arguments, start, ranks)
    return RunOutcome(0, "diagnosed")


def _diagnose_ranks(
    asked: Asked, start: float, folder: Path, config: dict[str, Any], allowed: tuple[str, ...]
) -> dict[str, Any] | None:
    """Diagnose several ranks, and return all figures; None if another host leads.

    If no rank is the cause, the environment becomes that of one rank alone.
    """
    from framework.cli.run_ranks import RankedJob  # noqa: PLC0415
    from framework.commands.diagnose import measure_run  # noqa: PLC0415
    from framework.diagnosis import print_facts  # noqa: PLC0415
    from framework.measure.host import cores_per_rank, num_cores  # noqa: PLC0415

    _say_progress(start, "training all ranks")
    seconds = RANKS_SHARE * asked.seconds
    if "RANK" in os.environ:
        threads = cores_per_rank()
        job = RankedJob(config, str(folder), allowed)
        facts = measure_run.measured_as_rank(job, seconds)
    else:
        threads = max(1, num_cores() // config["parallel"]["num_processes"])
        facts = measure_run.measured_here(config, allowed, folder, seconds)
    if facts is None:
        return None
    change = partial(changed, asked.words)
    print_facts.show_ranks(facts, change, config_flags(asked.config_dir))
    took_s = time.perf_counter() - start
    plain = print_facts.ranks_as_json(facts, asked.words, took_s)
    if plain["cause"]:
        say(f"took {took_s:.0f} s")
        if asked.apply:
            say("applied: nothing, since advice about ranks has to be followed by hand")
        _write(asked, plain)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        os.environ.pop(name, None)
    return plain


def _diagnose_alone(asked: Asked, arguments: list[str], start: float, more: dict[str, Any]) -> None:
    """Diagnose one process. ``more`` is added to the figures in ``output``."""
    import torch  # noqa: PLC0415

    from framework.cli.compose_config import composed  # noqa: PLC0415
    from framework.cli.progress import pack_missing  # noqa: PLC0415
    from framework.commands.diagnose.measure_parts import Setting  # noqa: PLC0415
    from framework.commands.diagnose.try_advice import apply, diagnose  # noqa: PLC0415
    from framework.diagnosis import print_facts  # noqa: PLC0415
    from framework.measure.host import threads_per_rank  # noqa: PLC0415

    grant = granted(arguments)

    def compose(changes: Sequence[str]) -> Setting:
        return Setting(*composed(changed(asked.words, changes), grant, asked.config_dir))

    # A training run sets the same number. With another, the rates would not be those of a run.
    torch.set_num_threads(threads_per_rank())
    setting = compose(())
    pack_missing(setting.config, setting.allowed)
    # Imports and small packing have taken some of the time.
    left_s = asked.seconds - (time.perf_counter() - start)
    progress = partial(_say_progress, start)
    diagnosis = diagnose(compose, max(left_s, LEAST_LEFT * asked.seconds), progress)
    change = partial(changed, asked.words)
    print_facts.show(diagnosis, change, config_flags(asked.config_dir))
    if asked.apply:
        diagnosis = apply(diagnosis, compose, asked.seconds, progress)
        print_facts.show_applied(diagnosis.applied)
    _write(asked, {**print_facts.as_json(diagnosis, asked.words), **more})


def _say_progress(start: float, text: str) -> None:
    say(f"{time.perf_counter() - start:5.1f} s  {text}", sys.stderr)


def _write(asked: Asked, plain: dict[str, Any]) -> None:
    if asked.output is not None:
        write_json(Path(asked.output), plain)
        say(f"all figures: {asked.output}")


def changed(words: Sequence[str], changes: Sequence[str]) -> list[str]:
    """Return ``words`` plus ``changes``, without overridden words and keys of replaced groups."""
    keys = [change.split("=")[0].lstrip("+") for change in changes]
    groups = tuple(f"{key}." for key in keys if (CONF / key).is_dir())
    kept: list[str] = []
    for word in words:
        key = word.split("=")[0].lstrip("+~")
        if key not in keys and not key.startswith(groups):
            kept.append(word)
    return [*with_recipe_said(kept, changes), *changes]
