"""What workers and ranks may meet beside the data: L and T of docs/faults.md."""

import json
import os
import resource
import signal
import time
from pathlib import Path

import pytest

from framework.train.checkpoint import read_state
from tests.cli.command import paceline
from tests.faults import forked, ranks, training
from tests.faults.forked import Command, is_one_line, needs_root, small_disk, wait_for
from tests.faults.training import RUN, words

TIMEOUT_S = 8


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Return the path of the digits' stores."""
    folder = tmp_path_factory.mktemp("digits")
    before = os.getcwd()
    os.chdir(folder)
    yield training.make_place(folder, ()).dataset
    os.chdir(before)


def train(dataset, *more):
    return [*words(dataset, "fp32", []), f"hydra.run.dir={RUN}", *more]


@needs_root
def test_l7_shared_memory_without_room_is_one_line(dataset):
    more = ["workers.num=2", "workers.kind=process", "batch_size=1437", "epochs=1"]
    done = forked.paceline(*train(dataset, *more), before=lambda: small_disk("/dev/shm", "64k"))
    assert is_one_line(done, "R102", 5, "/dev/shm")


def test_l8_too_few_file_handles_are_one_line(dataset):
    def few():
        number = len(os.listdir("/proc/self/fd")) + 4
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))

    done = forked.paceline(
        *train(dataset, "workers.num=8", "workers.kind=process", "loader=prefetch"), before=few
    )
    assert is_one_line(done, "R109", 5, "ulimit -n")


def stopped_ranks(dataset, victim, number):
    """Send a signal to one process of a run of two ranks. Return the exit code and exit.json.

    ``victim`` is 0 for the parent, else it counts the ranks from 1.
    """
    with Command(
        *train(dataset, *ranks.DDP, "epochs=3000", "report_every=1"), before=ranks.importable
    ) as command:
        wait_for(
            lambda: (
                Path(RUN, "metrics.jsonl").exists()
                and Path(RUN, "metrics.jsonl").stat().st_size > 3000
            ),
            "steps",
        )
        os.kill([command.pid, *ranks.ranks_of(command.pid)][victim], number)
        code = command.wait().code
    return code, json.loads(Path(RUN, "exit.json").read_text())


@pytest.mark.parametrize(
    ("victim", "number"),
    [
        (1, signal.SIGUSR1),
        pytest.param(0, signal.SIGUSR1, marks=pytest.mark.slow),
        pytest.param(2, signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_t13_if_any_rank_gets_a_signal_all_ranks_save_at_one_step(dataset, victim, number):
    code, said = stopped_ranks(dataset, victim, number)
    state = read_state(Path(RUN, said["checkpoint"]))
    assert (code, said["code"], state["progress"]["step"]) == (75, 75, said["step"])
    assert len(state["generators"]) == len(state["pending"]["ranks"]) == 2


@pytest.mark.slow
def test_t20_a_rank_that_hangs_ends_the_run_in_its_time(dataset):
    more = [*ranks.DDP, "epochs=3000", "report_every=1", f"parallel.timeout_s={TIMEOUT_S}"]
    with Command(*train(dataset, *more), before=ranks.importable) as command:
        wait_for(
            lambda: (
                Path(RUN, "metrics.jsonl").exists()
                and Path(RUN, "metrics.jsonl").stat().st_size > 3000
            ),
            "steps",
        )
        hung = ranks.ranks_of(command.pid)[1]
        os.kill(hung, signal.SIGSTOP)
        start = time.monotonic()
        done = command.wait(TIMEOUT_S + 60)
    assert time.monotonic() - start < TIMEOUT_S + 15
    assert done.code == 7
    line = f"error[P103]: rank 1: hangs, since process {hung} is stopped"
    assert done.err.splitlines()[-1].startswith(line)


def gentle(dataset):
    """Return the words of a training whose rounding stays rounding.

    At the recipe's own rate, rounding grows fourfold a step.
    """
    return [
        *("train", "epochs=3", "schedule=constant", "optim.lr=0.002", "report_every=1"),
        *("sink=[jsonl]", "recipes=digits", f"dataset={dataset}"),
    ]


def losses(run_dir):
    """Return the reported losses, step by step."""
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return []
    # the run may still be writing the last line
    lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    return [line["loss"] for line in lines if line["split"] == "train"]


@pytest.mark.slow
def test_t8_one_rank_then_four_then_two_go_on_in_the_same_order(dataset):
    common = gentle(dataset)
    training.good(paceline(*common, "max_steps=30", "hydra.run.dir=whole"))
    training.good(paceline(*common, "max_steps=7", f"hydra.run.dir={RUN}"))
    for num_ranks, max_steps in ((4, 17), (2, 30)):
        more = ["parallel=ddp", f"parallel.num_processes={num_ranks}", f"max_steps={max_steps}"]
        training.good(forked.paceline("train", f"resume={RUN}", *more, before=ranks.importable))
    assert losses(Path(RUN)) == pytest.approx(losses(Path("whole")), rel=1e-5)
