"""Measure short runs of a configuration on this host: of one rank, and of several together."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from framework.cli.arguments import quoted
from framework.commands.diagnose.diagnose import changed
from framework.commands.own_keys import config_flags
from framework.commands.plan.forecast import missing, rank_share
from framework.commands.plan.measured_run import MeasuredRun, measured_run
from framework.commands.plan.planned_hosts import PlannedHosts
from framework.errors import ConfigError
from framework.measure.host import num_cores

ENDLESS = 1_000_000_000
REPORT_EVERY = 5
# One replica without a choice: ``parallel=ddp`` stands for it if several ranks are planned.
ONE_REPLICA = {"_target_": "framework.parallel.none.NoParallel"}


def planned_batch_size(config: dict[str, Any], hosts: PlannedHosts) -> int:
    """Return the records of a step of all ranks."""
    of_rank = config["rank_batch_size"]
    if of_rank is not None:
        return of_rank * config["accumulate"] * hosts.ranks
    return config["batch_size"]


def check_parallel(config: dict[str, Any], hosts: PlannedHosts) -> None:
    """Raise ConfigError C398 if the planned ranks cannot train with the configured ``parallel``."""
    parallel = config["parallel"]
    if hosts.ranks == 1 or "num_processes" in parallel or parallel == ONE_REPLICA:
        return
    why = f"trains in one process, and {hosts.ranks} ranks are planned"
    raise missing(f"parallel = {parallel['_target_']}", why, "choose ddp, fsdp or virtual")


def most_ranks(hosts: PlannedHosts) -> int:
    """Return how many of a host's ranks this machine can run together.

    Raises:
        ConfigError: C398 if it has too few cores for one, or only one rank where several exchange
            gradients.
    """
    together = num_cores() // hosts.cores_per_rank
    if hosts.gpu is not None:
        together = torch.cuda.device_count()
    if together == 0:
        raise _no_rank_runs(hosts)
    if together == 1 and hosts.ranks_per_host > 1:
        cores = 2 * hosts.cores_per_rank
        why = "what ranks cost each other cannot be measured: this machine has cores for one"
        fix = f"plan on a host with {cores} cores, or give run=DIR,DIR of one rank and of several"
        raise missing(f"ranks_per_host = {hosts.ranks_per_host}", why, fix)
    return min(together, hosts.ranks_per_host)


def _no_rank_runs(hosts: PlannedHosts) -> ConfigError:
    if hosts.gpu is not None:
        why = "this machine has no GPU, so its computing was not measured"
        fix = "run 'paceline plan' on such a host, or give run=DIR of a run there"
        return missing(f"gpu = {hosts.gpu}", why, fix)
    why = f"a rank would have {hosts.cores_per_rank} cores, and this machine has {num_cores()}"
    fix = "run 'paceline plan' on a host with so many, or give run=DIR of a run there"
    return missing(f"cores = {hosts.cores}", why, fix)


def short_runs(
    words: Sequence[str],
    config_dir: str | None,
    config: dict[str, Any],
    hosts: PlannedHosts,
    seconds: float,
    folder: str,
) -> list[MeasuredRun]:
    """Train for about ``seconds`` in ``folder``, and return what was measured.

    Args:
        words: The overrides of the planned run.
        config_dir: The user's folder of groups and recipes.
        config: The planned run's configuration.
        hosts: Where it shall be.
        seconds: For all runs together, without their start.
        folder: For the runs' directories.
    """
    together = most_ranks(hosts)
    rank_batch = rank_share(hosts, planned_batch_size(config, hosts))
    counts = sorted({1, together})
    runs: list[MeasuredRun] = []
    for ranks in counts:
        run_dir = Path(folder) / f"ranks-{ranks}"
        changes = _parallel(config["parallel"], ranks)
        changes += _changes(ranks * rank_batch, seconds / len(counts), run_dir)
        cores = ranks * hosts.cores_per_rank
        _train([*config_flags(config_dir), *changed(words, changes)], cores)
        run = measured_run(run_dir, cores)
        of_plan = {key: config[key] for key in ("epochs", "max_steps", "validate_every")}
        runs.append(replace(run, keep=config["checkpoint"]["keep"], **of_plan))
    return runs


def _parallel(planned: dict[str, Any], ranks: int) -> list[str]:
    """Return the overrides that start so many ranks on this host, as ``parallel`` is planned."""
    counts = {"num_processes": ranks, "num_nodes": 1, "endpoint": "null", "max_restarts": 0}
    if "num_processes" in planned:
        return [f"parallel.{key}={value}" for key, value in counts.items() if key in planned]
    return ["parallel=ddp", f"parallel.num_processes={ranks}"] if ranks > 1 else []


def _changes(batch_size: int, seconds: float, run_dir: Path) -> list[str]:
    """Return the overrides that make a short run of the planned one."""
    return [
        f"batch_size={batch_size}",
        "rank_batch_size=null",
        f"stop.after={max(1, round(seconds))}s",
        f"epochs={ENDLESS}",
        "max_steps=null",
        f"validate_every={ENDLESS}",
        "checkpoint.every_epochs=null",
        "checkpoint.every_steps=null",
        f"report_every={REPORT_EVERY}",
        "clock=true",
        "sink=[jsonl]",
        f"hydra.run.dir={quoted(str(run_dir))}",
    ]


def _train(words: Sequence[str], cores: int) -> None:
    """Run ``paceline train`` on so many cores. Raise the error in which it ends, as C398."""
    mine = sorted(os.sched_getaffinity(0))[:cores]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(  # noqa: S603  # our own command
        [sys.executable, "-m", "framework", "train", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=partial(os.sched_setaffinity, 0, mine),  # no thread runs yet
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("error[")]
        what = f"cannot be measured here: {' '.join(lines) or done.stderr[-300:]}"
        raise ConfigError(398, "the run", what, "correct it, or give run=DIR of a finished run")
