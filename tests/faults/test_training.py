"""A run that is killed, stopped, starved or misled: T of docs/faults.md.

``make faults`` runs long campaigns of the same attempts.
"""

import json
import os
import random
import signal
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import framework.commands.train.train
from framework.system.durable import is_alive, remove_leftovers
from framework.train.checkpoint import newest_path, newest_state, read_state
from tests.cli.command import paceline
from tests.conftest import children_of_this_process
from tests.faults import forked, ranks, states, training
from tests.faults.forked import Command, is_one_line, needs_root, small_disk, wait_for
from tests.faults.training import POINTS, RUN, good, words

STATES = Path(RUN, "checkpoints")


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


# ----------------------------------------------------------------------------- samples of campaigns


def test_a_killed_run_resumes_to_the_same_bits(place):
    assert training.killed_at_random(place, random.Random(0)) == ""


FEW_POINTS = ("publish.written", "publish.renamed", "checkpoint.removed")


@pytest.mark.parametrize(
    "point",
    [
        point if point in FEW_POINTS else pytest.param(point, marks=pytest.mark.slow)
        for point in POINTS
    ],
)
def test_t3_a_run_killed_in_a_save_goes_on_to_the_same_bits(place, point):
    assert training.killed_while_saving(place, point, random.Random(point)) == ""


def test_a_run_stopped_by_a_signal_loses_nothing(place):
    assert training.told_to_stop(place, random.Random(0)) == ""


@pytest.fixture(scope="module")
def place_of_two(place, tmp_path_factory):
    """Return the place with the end of an undisturbed run of two ranks added."""
    return ranks.with_ranks(place, tmp_path_factory.mktemp("ddp"))


@pytest.mark.slow
def test_t2_t18_a_rank_that_is_killed_takes_all_down_and_the_run_goes_on(place_of_two):
    assert ranks.one_killed(place_of_two, random.Random(0)) == ""


@pytest.mark.slow
def test_all_ranks_restart_and_reach_the_same_bits(place_of_two):
    assert ranks.killed_and_started_again(place_of_two, random.Random(0)) == ""


def test_t4_damaged_states_are_reported_before_they_are_unpickled(tmp_path):
    whole = states.make_state(tmp_path / "state.pt")
    assert [
        said for seed in range(100) if (said := states.is_refused(whole, random.Random(seed)))
    ] == []


# ----------------------------------------------------------------------------------------- resuming


def killed(place):
    """Kill a run that has saved two states. Return the path of the newer one."""
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


def test_t15_a_run_whose_numbers_went_wrong_keeps_its_last_good_state(place):
    done = paceline(*train(place, "optim.lr=1e20", "schedule=constant", "checkpoint.every_steps=1"))
    assert is_one_line(done, "N101", 6, "at learning rate")
    ended = json.loads(Path(RUN, "exit.json").read_text())
    assert (ended["code"], ended["rank"]) == (6, None)
    path = newest_path(Path(RUN))
    if path is not None:
        assert all(
            bool(torch.isfinite(value).all()) for value in read_state(path)["model"].values()
        )
        assert ended["checkpoint"] == f"checkpoints/{path.name}"


def test_t26_after_a_kill_tensorboard_has_every_step_once(place):
    more = ["sink=[jsonl,tensorboard]", "report_every=1"]
    with Command(*train(place, *more)) as command:
        wait_for(lambda: newest_path(Path(RUN)) is not None, "a state")
        command.process.join(0.1)
    good(paceline("train", f"resume={RUN}", "allow_targets=[tests]"))
    events = EventAccumulator(str(Path(RUN, "tensorboard")), size_guidance={"scalars": 0})
    events.Reload()
    assert [event.step for event in events.Scalars("loss/train")] == list(range(1, 46))


def test_the_same_command_with_auto_starts_goes_on_and_says_when_it_is_done(place):
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


# ------------------------------------------------------------------------------ disks and processes


@needs_root
def test_t5_a_disk_without_room_for_a_second_state_costs_the_run_nothing_but_its_end(place):
    os.mkdir("disk")
    more = [
        "model.width=256",
        "data.val=null",
        "checkpoint.keep=1",
        "epochs=1",
        f"hydra.run.dir={os.getcwd()}/disk/run",
    ]
    done = forked.paceline(*train(place)[:-1], *more, before=lambda: small_disk("disk", "360k"))
    assert is_one_line(done, "R101", 5, "No space left on device")
    assert "warning: step 8 is not saved, the newest checkpoint stands" in done.err


def test_t28_a_second_process_in_a_run_directory_learns_who_the_first_is(place):
    def hasty():
        framework.commands.train.train.PATIENCE_S = 0.2

    with Command(*train(place, "epochs=3000")) as command:
        wait_for(lambda: newest_path(Path(RUN)) is not None, "a state")
        done = forked.paceline("train", f"resume={RUN}", "allow_targets=[tests]", before=hasty)
        assert is_one_line(done, "R108", 5, f"process {command.pid} on ")
        os.kill(command.pid, signal.SIGUSR1)
        assert command.wait().code == 75
    assert not Path(RUN, "run.lock").exists()


def test_l12_a_killed_run_leaves_no_worker_behind(place):
    before = children_of_this_process()
    with Command(
        *train(place, "epochs=3000", "workers.num=2", "workers.kind=process", "loader=prefetch")
    ) as command:
        wait_for(lambda: newest_path(Path(RUN)) is not None, "a state")
        children = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
        os.kill(command.pid, signal.SIGKILL)
        wait_for(lambda: not any(is_alive(int(child)) for child in children), "their end", 60)
    assert children_of_this_process() <= before
    assert newest_state(Path(RUN)).state["progress"]["step"] > 0
    remove_leftovers(STATES)  # as the next run does: it was perhaps killed while it saved
    assert {path.suffix for path in STATES.iterdir()} == {".pt"}
