"""How many processes share a run, and what makes a process one of them. Loads no torch."""

import os
import re
from collections.abc import Mapping

from framework.errors import ConfigError

FIRST_PORT = 20_000
NUM_PORTS = 10_000


def under_launcher() -> bool:
    """Return whether a launcher has made this process one of several ranks."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def rank_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that torchrun would have set for this task of a srun with several.

    Any other process, such as a batch script or a rank of torchrun, gets {}. The ranks meet on the
    first host of the step, at a port that is derived from the job's number.
    """
    num_tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if "RANK" in environment or "SLURM_PROCID" not in environment or int(num_tasks) < 2:
        return {}
    job = int(environment["SLURM_JOB_ID"])
    step = int(environment.get("SLURM_STEP_ID", "0"))
    node = int(environment["SLURM_NODEID"])
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": num_tasks,
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": local_tasks(environment["SLURM_STEP_TASKS_PER_NODE"], node),
        "MASTER_ADDR": first_host(environment["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": str(FIRST_PORT + (job + 101 * step) % NUM_PORTS),
    }


def first_host(nodes: str) -> str:
    """Return the first host of Slurm's list, as node003 of ``node[003-010,12],login``."""
    match = re.match(r"([^,\[]+)(?:\[(\w+)[^\]]*\]([^,\[]*))?", nodes)
    return "".join(match.groups("")) if match else nodes


def local_tasks(tasks: str, node: int) -> str:
    """Return the number of tasks on a node from Slurm's list, as 2 on node 3 of ``4(x3),2``."""
    for part in tasks.split(","):
        count, _, times = part.rstrip(")").partition("(x")
        node -= int(times or 1)
        if node < 0:
            return count
    return "1"


def check_virtual_ranks(virtual_ranks: int, num_processes: int) -> None:
    """Raise ConfigError C143 unless the processes can share the virtual ranks and keep the sums.

    The virtual ranks of a process must form a subtree of the sum: they are all, or a power of two.
    """
    divisors = [n for n in range(1, virtual_ranks + 1) if virtual_ranks % n == 0]
    fitting = [n for n in divisors if n == 1 or (virtual_ranks // n).bit_count() == 1]
    if num_processes not in fitting:
        where = f"parallel.virtual_ranks = {virtual_ranks}"
        what = f"cannot be dealt out to {num_processes} processes so that sums stay the same"
        fix = f"have {' or '.join(map(str, fitting))} processes in all"
        raise ConfigError(143, where, what, fix)
