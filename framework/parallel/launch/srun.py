"""Slurm's srun starts processes that know their number; torch wants to hear it in torchrun's words."""

import re
from collections.abc import Mapping

FIRST_PORT, NUM_PORTS = 20_000, 10_000


def rank_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What torchrun would have set, for a task of an srun of several; nothing elsewhere, as in a batch script or under torchrun.

    The first host of the step is where ranks meet, at a port that follows from the job's number.
    """
    if (
        "RANK" in environment
        or int(environment.get("SLURM_STEP_NUM_TASKS", "1")) < 2
        or "SLURM_PROCID" not in environment
    ):
        return {}
    job, step = int(environment["SLURM_JOB_ID"]), int(environment.get("SLURM_STEP_ID", "0"))
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": local_tasks(
            environment["SLURM_STEP_TASKS_PER_NODE"], int(environment["SLURM_NODEID"])
        ),
        "MASTER_ADDR": first_host(environment["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": str(FIRST_PORT + (job + 101 * step) % NUM_PORTS),
    }


def first_host(nodes: str) -> str:
    """Of a list as Slurm writes it: ``node[003-010,12],login`` begins with node003."""
    found = re.match(r"([^,\[]+)(?:\[(\w+)[^\]]*\]([^,\[]*))?", nodes)
    return "".join(part or "" for part in found.groups()) if found else nodes


def local_tasks(tasks: str, node: int) -> str:
    """Tasks on the node of that number, where Slurm writes ``4(x3),2``."""
    for part in tasks.split(","):
        count, _, times = part.rstrip(")").partition("(x")
        node -= int(times or 1)
        if node < 0:
            return count
    return "1"
