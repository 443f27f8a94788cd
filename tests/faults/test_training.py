"""A run that is killed, stopped, starved or misled: L and T of docs/faults.md."""

import json
import os
import random
import resource
import signal
import time
from pathlib import Path

import pytest

from framework.system.durable import is_alive, remove_leftovers
from framework.train.checkpoint import newest_path, newest_state, read_state
from tests.cli.command import paceline
from tests.conftest import children_of_this_process
from tests.faults import forked, training
from tests.faults.forked import Command, is_one_line, needs_root, small_disk, wait_for
from tests.faults.training import POINTS, RUN, good, words

STATES = Path(RUN, "checkpoints")
TIMEOUT_S = 8


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return the digits' stores and the ends of undisturbed runs."""
    folder = tmp_path_factory.mktemp("faults")
    before = os.getcwd()
    os.chdir(folder)
    yield training.make_place(folder, ("fp32",))
    os.chdir(before)


def train(place, *more, precision="fp32"):
    return [*words(place.dataset, precision, training.WAYS[0]), f"hydra.run.dir={RUN}", *more]


def test_a_killed_run_resumes_to_the_same_bits(place):
    assert training.killed_at_random(place, random.Random(0)) == ""


FEW_POINTS = ("publish.written", "publish.renamed", "checkpoint.removed")


SLOW_POINTS = [pytest.param(p, marks=pytest.mark.slow) for p in POINTS if p not in FEW_POINTS]


@pytest.mark.parametrize("point", [*FEW_POINTS, *SLOW_POINTS])
def test_t3_a_run_killed_in_a_save_resumes_to_the_same_bits(place, point):
    assert training.killed_while_saving(place, point, random.Random(point)) == ""


def test_a_run_stopped_by_a_signal_loses_nothing(place):
    assert training.stopped_by_signal(place, random.Random(0)) == ""


@pytest.fixture(scope="module")
def place_of_two(place, tmp_path_factory):
    """Return the place with the end of an undisturbed run of two ranks added."""
    return training.with_ranks(place, tmp_path_factory.mktemp("ddp"))


@pytest.mark.slow
def test_t2_t18_a_rank_that_is_killed_ends_all_and_the_run_resumes(place_of_two):
    assert training.one_killed(place_of_two, random.Random(0)) == ""


@pytest.mark.slow
def test_all_ranks_restart_and_reach_the_same_bits(place_of_two):
    assert training.killed_and_started_again(place_of_two, random.Random(0)) == ""


def test_t4_damaged_states_are_reported_before_they_are_unpickled(tmp_path):
    whole = training.make_state(tmp_path / "state.pt")
    outcome = [training.is_refused(whole, random.Random(seed)) for seed in range(100)]
    assert set(outcome) == {""}


def killed(place):
    """Kill a run that has saved two training. Return the path of the newer one."""
    with Command(*train(place), before=training.die_at("checkpoint.removed", 3)) as command:
        assert command.wait().code == -signal.SIGKILL
    assert len(list(STATES.glob("step-*.pt"))) == 2
    return newest_path(Path(RUN))


def test_t4_a_rotten_newest_state_is_named(place):
    newest = killed(place)
    data = bytearray(newest.read_bytes())
    data[1000] ^= 4
    newest.write_bytes(data)
    done = paceline("train", f"resume={RUN}", "allow_targets=[tests]")
    assert (
        f"note: {newest.name} (its checksum differs) cannot be read; continuing from step-000000"
        in done.err
    )
    assert training.difference(place, "fp32") == ""


def test_t7_a_finished_run_says_so_even_if_it_was_killed_before_it_could(place):
    good(paceline(*train(place, "max_steps=8")))
    resume = ["train", f"resume={RUN}", "allow_targets=[tests]"]
    done = paceline(*resume)
    assert done.code == 0
    assert "this run has already finished, after 8 steps" in done.err
    Path(RUN, "summary.json").unlink()
    good(paceline(*resume))
    assert json.loads(Path(RUN, "summary.json").read_text())["status"] == "finished"


def test_the_same_command_with_auto_starts_resumes_and_says_when_it_is_done(place):
    again = train(place, "resume=auto")
    with Command(*again) as command:  # killed as soon as it has a directory
        wait_for(lambda: Path(RUN, "run.json").exists(), "its beginning")
    with Command(*again) as command:
        wait_for(lambda: newest_path(Path(RUN)) is not None, "a state")
        os.kill(command.pid, signal.SIGUSR1)
        assert command.wait().code in (0, 75)
    good(paceline(*again))
    assert training.difference(place, "fp32") == ""
    assert "already finished" in paceline(*again).err


@needs_root
def test_t5_a_disk_without_room_for_a_second_state_costs_the_run_nothing_but_its_end(place):
    os.mkdir("disk")
    more = ["model.width=256", "data.val=null", "checkpoint.keep=1", "epochs=1"]
    more.append(f"hydra.run.dir={os.getcwd()}/disk/run")
    done = forked.paceline(*train(place)[:-1], *more, before=lambda: small_disk("disk", "360k"))
    assert is_one_line(done, "R101", 5, "No space left on device")
    assert "warning: step 8 is not saved, the newest checkpoint stands" in done.err


def test_l12_a_killed_run_leaves_no_worker_behind(place):
    before = children_of_this_process()
    more = ["epochs=3000", "workers.num=2", "workers.kind=process", "loader=prefetch"]
    with Command(*train(place, *more)) as command:
        wait_for(lambda: newest_path(Path(RUN)) is not None, "a state")
        children = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
        os.kill(command.pid, signal.SIGKILL)
        wait_for(lambda: not any(is_alive(int(child)) for child in children), "their end", 60)
    assert children_of_this_process() <= before
    assert newest_state(Path(RUN)).state["progress"]["step"] > 0
    remove_leftovers(STATES)  # as the next run does: it was perhaps killed while it saved
    assert {path.suffix for path in STATES.iterdir()} == {".pt"}


@needs_root
def test_l7_shared_memory_without_room_is_one_line(place):
    more = ["workers.num=2", "workers.kind=process", "batch_size=1437", "epochs=1"]
    done = forked.paceline(*train(place, *more), before=lambda: small_disk("/dev/shm", "64k"))
    assert is_one_line(done, "R102", 5, "/dev/shm")


def test_l8_too_few_file_handles_are_one_line(place):
    def few():
        number = len(os.listdir("/proc/self/fd")) + 4
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))

    more = ["workers.num=8", "workers.kind=process", "loader=prefetch"]
    done = forked.paceline(*train(place, *more), before=few)
    assert is_one_line(done, "R109", 5, "ulimit -n")


def has_steps():
    log = Path(RUN, "metrics.jsonl")
    return log.exists() and log.stat().st_size > 3000


def stopped_ranks(place, victim, number):
    """Signal the parent (0) or a rank (from 1). Return the exit code and exit.json."""
    more = [*training.DDP, "epochs=3000", "report_every=1"]
    with Command(*train(place, *more), before=training.importable) as command:
        wait_for(has_steps, "steps")
        os.kill([command.pid, *training.ranks_of(command.pid)][victim], number)
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
def test_t13_if_any_rank_gets_a_signal_all_ranks_save_at_one_step(place, victim, number):
    code, outcome = stopped_ranks(place, victim, number)
    state = read_state(Path(RUN, outcome["checkpoint"]))
    assert (code, outcome["code"], state["progress"]["step"]) == (75, 75, outcome["step"])
    assert len(state["generators"]) == len(state["pending"]["ranks"]) == 2


@pytest.mark.slow
def test_t20_a_rank_that_hangs_ends_the_run_in_its_time(place):
    more = [*training.DDP, "epochs=3000", "report_every=1", f"parallel.timeout_s={TIMEOUT_S}"]
    with Command(*train(place, *more), before=training.importable) as command:
        wait_for(has_steps, "steps")
        hung = training.ranks_of(command.pid)[1]
        os.kill(hung, signal.SIGSTOP)
        start = time.monotonic()
        done = command.wait(TIMEOUT_S + 60)
    assert time.monotonic() - start < TIMEOUT_S + 15
    assert done.code == 7
    line = f"error[P103]: rank 1: hangs, since process {hung} is stopped"
    assert done.err.splitlines()[-1].startswith(line)


def gentle(place):
    """Return words of a training at a rate that does not amplify rounding."""
    return [
        *("train", "epochs=3", "schedule=constant", "optim.lr=0.002", "report_every=1"),
        *("sink=[jsonl]", "recipes=digits", f"dataset={place.dataset}"),
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
def test_t8_one_rank_then_four_then_two_keep_the_same_order(place):
    common = gentle(place)
    good(paceline(*common, "max_steps=30", "hydra.run.dir=whole"))
    good(paceline(*common, "max_steps=7", f"hydra.run.dir={RUN}"))
    for num_ranks, max_steps in ((4, 17), (2, 30)):
        more = ["parallel=ddp", f"parallel.num_processes={num_ranks}", f"max_steps={max_steps}"]
        good(forked.paceline("train", f"resume={RUN}", *more, before=training.importable))
    assert losses(Path(RUN)) == pytest.approx(losses(Path("whole")), rel=1e-5)
