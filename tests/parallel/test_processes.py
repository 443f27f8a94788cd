import pytest

from framework.errors import ConfigError
from framework.parallel import processes

STEP = {"SLURM_JOB_ID": "1234", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "5"}
STEP |= {"SLURM_STEP_NODELIST": "gpu[07-09]", "SLURM_STEP_TASKS_PER_NODE": "2(x2),1"}
STEP |= {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}


def test_a_task_of_srun_is_a_rank():
    assert processes.rank_environment(STEP) == {
        "RANK": "3",
        "WORLD_SIZE": "5",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "gpu07",
        "MASTER_PORT": "21436",
    }


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_JOB_ID": "1234", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"},  # a batch script
        {**STEP, "SLURM_STEP_NUM_TASKS": "1"},
        {**STEP, "RANK": "0"},  # torchrun inside srun
    ],
)
def test_nothing_else_is(environment):
    assert processes.rank_environment(environment) == {}


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        *(("localhost", "localhost"), ("a,b", "a"), ("node[003-010,12],login", "node003")),
        *(("node[5,7]", "node5"), ("rack1-[01-02]-ib", "rack1-01-ib")),
        ("a-1.example.org", "a-1.example.org"),
    ],
)
def test_the_first_host_of_a_list(nodes, first):
    assert processes.first_host(nodes) == first


@pytest.mark.parametrize(
    ("tasks", "node", "count"),
    [("4", 0, "4"), ("2(x3),1", 2, "2"), ("2(x3),1", 3, "1"), ("1,3,2(x2)", 1, "3")],
)
def test_tasks_of_a_node(tasks, node, count):
    assert processes.local_tasks(tasks, node) == count


@pytest.mark.parametrize("job", [0, 1, 65_535, 199_999])
def test_the_port_is_one_that_anybody_may_use(job):
    port = int(processes.rank_environment({**STEP, "SLURM_JOB_ID": str(job)})["MASTER_PORT"])
    assert 1024 < port < 1 << 16


def test_the_environment_says_whether_a_launcher_is_there(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert not processes.under_launcher()
    monkeypatch.setenv("RANK", "3")
    assert not processes.under_launcher()
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert processes.under_launcher()


@pytest.mark.parametrize(("virtual_ranks", "num_processes"), [(1, 1), (4, 2), (6, 3), (12, 3)])
def test_processes_that_add_up_in_the_same_order_pass(virtual_ranks, num_processes):
    processes.check_virtual_ranks(virtual_ranks, num_processes)


@pytest.mark.parametrize(("virtual_ranks", "num_processes"), [(4, 3), (4, 8), (6, 2)])
def test_other_numbers_of_processes_are_refused(virtual_ranks, num_processes):
    with pytest.raises(ConfigError, match=f"cannot be dealt out to {num_processes} processes"):
        processes.check_virtual_ranks(virtual_ranks, num_processes)
