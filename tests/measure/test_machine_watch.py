import os
import time

import pytest

from framework.measure import machine_watch
from framework.measure.host import Cgroups
from framework.measure.machine_watch import MachineWatch
from tests.forks import forked, other_program


def spin(seconds):
    """Compute for so many seconds of CPU time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_another_program_is_named_with_its_cores(monkeypatch):
    monkeypatch.setattr(machine_watch, "NUM_PROGRAMS", 1000)
    monkeypatch.setattr(machine_watch, "LEAST_CORES", 0.0)
    with other_program(spin, 30) as other:
        watch = MachineWatch()
        time.sleep(0.5)
        use = watch.lap()
    mine = next(program for program in use.programs if program.pid == other)
    assert 0 < mine.cores < use.others_cores + 0.1
    assert mine.name


def test_our_own_work_and_that_of_ended_children_is_ours():
    watch = MachineWatch()
    spin(0.2)
    child = forked(spin, 0.3)
    child.join()
    use = watch.lap()
    assert use.own_cores * use.wall_s >= 0.45
    assert os.getpid() not in {program.pid for program in use.programs}
    assert child.pid not in {program.pid for program in use.programs}


def test_the_share_of_throttled_periods_is_that_since_the_last_lap(tmp_path):
    (tmp_path / "cpu.max").write_text("50000 100000")
    stat = tmp_path / "cpu.stat"
    stat.write_text("nr_periods 100\nnr_throttled 10\nthrottled_usec 5\n")
    watch = MachineWatch(Cgroups(tmp_path, tmp_path / "own"))
    stat.write_text("nr_periods 110\nnr_throttled 16\nthrottled_usec 9\n")
    assert watch.lap().throttled_share == pytest.approx(0.6)
    assert watch.lap().throttled_share == 0.0


def test_waiting_for_memory_is_a_share_of_the_time(tmp_path):
    pressure = tmp_path / "memory"
    pressure.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=1000\nfull total=5\n")
    watch = MachineWatch(pressure=pressure)
    time.sleep(0.05)
    pressure.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=11000\nfull total=5\n")
    use = watch.lap()
    assert use.stalled_share == pytest.approx(0.01 / use.wall_s)
