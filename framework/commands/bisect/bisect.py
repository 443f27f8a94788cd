"""``paceline bisect A B``: find the key, environment or commit that makes one slower."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from framework.cli.allowed import Grant, allowed_targets, granted
from framework.cli.arguments import plain_words, quoted, with_output
from framework.cli.hydra_app import resolved, run_app
from framework.cli.outcome import RunOutcome, told
from framework.commands.own_keys import check_output
from framework.config.rule import Rule, check_known, check_values
from framework.errors import EXIT_UNPROVED, ConfigError
from framework.system.stopping import message_if_stopped, scratch_folder

RULES = {
    "before": Rule(str, means="the directory of a run, or the file of a bench"),
    "after": Rule(str, means="the directory of a run, or the file of a bench"),
    "pairs": Rule(int, 6, 1000),
    "seconds": Rule(float, 0.01, 3600),
    "python": Rule(str | None, means="the path of an interpreter"),
    "repo": Rule(str | None, means="the folder of a git repository"),
}
OUTPUT_RULES = {"path": Rule(str | None, means="the name of a file")}
KEYS = (*RULES, "output", "allow_targets")


def main(arguments: list[str]) -> int:
    """Run the command. Two words that are not overrides are the two sides."""
    grant = granted(arguments)
    words = with_output(_with_sides(arguments))
    return run_app("bisect", words, lambda cfg: told(partial(_bisect, cfg, grant)))


def _with_sides(arguments: list[str]) -> list[str]:
    """Return the words with ``before=`` and ``after=`` for the plain ones. ConfigError C100."""
    if arguments[:1] == ["-sc"]:
        return arguments
    plain = plain_words(arguments)
    if not plain:
        return arguments
    if len(plain) != 2:
        fix = "give two: paceline bisect A B"
        what = f"{len(plain)} sides"
        raise ConfigError(100, " ".join(plain), what, fix)
    keys = [word for word in arguments if word not in plain]
    if any(word.startswith(("before=", "after=")) for word in keys):
        what = "stands beside before= or after="
        raise ConfigError(100, " ".join(plain), what, "give one or the other")
    return [*keys, f"before={quoted(plain[0])}", f"after={quoted(plain[1])}"]


def _bisect(cfg: DictConfig, grant: Grant, run_dir: Path) -> RunOutcome:
    config: dict[str, Any] = resolved(cfg)
    allowed = allowed_targets(config, grant)
    check_known(config, KEYS)
    check_values(config, RULES)
    check_values(config["output"], OUTPUT_RULES, "output.")
    output = config["output"]["path"]
    check_output(output, 101)
    python: str | None = config["python"]
    _check_python(python)
    with message_if_stopped("stopped{by}: no cause was found yet"):
        # These load torch, which a wrong key should not have to wait for.
        from framework.commands.bisect.search_cause import BisectJob  # noqa: PLC0415
        from framework.commands.bisect.sides import read_sides  # noqa: PLC0415

        sides = read_sides(config["before"], config["after"], grant, allowed)
        job = BisectJob(*sides, allowed, config["pairs"], config["seconds"], python, config["repo"])
        return _search(job, output)


def _check_python(python: str | None) -> None:
    if python is not None and shutil.which(python) is None:
        fix = "give the python of a virtual environment, as in /venv/bin/python"
        raise ConfigError(348, f"python = {python}", "is no program that can be run", fix)


def _search(job: Any, output: str | None) -> RunOutcome:
    from framework.commands.bisect.commit_search import worktrees  # noqa: PLC0415
    from framework.commands.bisect.meter import Meter  # noqa: PLC0415
    from framework.commands.bisect.print_cause import (  # noqa: PLC0415
        print_progress,
        print_result,
        print_sides,
    )
    from framework.commands.bisect.search_cause import (  # noqa: PLC0415
        FOUND,
        CauseSearch,
        differences,
    )
    from framework.measure.statistics import needed  # noqa: PLC0415
    from framework.system.durable import write_json  # noqa: PLC0415

    changes = differences(job)
    needed("scipy", "stats")  # for the tests, which come after measuring
    print_sides(job, changes)
    meter = Meter(job.allowed, job.seconds)
    with scratch_folder("paceline-bisect-") as folder:
        try:
            if job.repo is None:
                result = CauseSearch(job, changes, meter, None, print_progress).run()
            else:
                with worktrees(job.repo, folder) as trees:
                    result = CauseSearch(job, changes, meter, trees, print_progress).run()
        finally:
            meter.close()
    print_result(result)
    if output is not None:
        write_json(Path(output), result.as_json())
        print(f"all figures: {output}", flush=True)
    if result.outcome != FOUND:
        return RunOutcome(EXIT_UNPROVED, f"bisect: {result.outcome}")
    return RunOutcome(0, "found")
