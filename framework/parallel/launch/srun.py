"""Make ranks of the processes that Slurm's srun starts: torch reads torchrun's variables."""

import re
from collections.abc import Mapping

FIRST_PORT = 20_000
NUM_PORTS = 10_000


def rank_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that torchrun would have set for this task of an srun with several.

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
    if match is None:
        return nodes
    return "".join(match.groups(""))


def local_tasks(tasks: str, node: int) -> str:
    """Return the number of tasks on a node from Slurm's list, as 2 on node 3 of ``4(x3),2``."""
    for part in tasks.split(","):
        count, _, times = part.rstrip(")").partition("(x")
        node -= int(times or 1)
        if node < 0:
            return count
    return "1"
