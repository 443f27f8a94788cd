import multiprocessing
import os
import time
from types import SimpleNamespace

import pytest
import torch

from framework.measure import host, usage
from tests.forks import forked, other_program

CPU = torch.device("cpu")
MEGABYTE = 1 << 20


def _spin(seconds):
    """Compute for so many seconds of this process's CPU time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def _work(pipe):
    """Compute and hold memory as each message asks, then answer. It runs in a worker process."""
    held = []
    for seconds, num_bytes in iter(pipe.recv, None):
        held.append(b"x" * num_bytes)
        _spin(seconds)
        pipe.send("done")


@pytest.fixture
def worker():
    """Yield ``worker(seconds, num_bytes)``: a process computes, holds memory, gives its id."""
    here, there = multiprocessing.Pipe()
    process = forked(_work, there)

    def order(seconds, num_bytes=0):
        here.send((seconds, num_bytes))
        assert here.recv() == "done"
        return process.pid

    order.process = process
    yield order
    if process.is_alive():
        here.send(None)
    process.join()
    here.close()
    there.close()


def test_the_cores_of_worker_processes_are_distinguished(worker):
    start = time.perf_counter()
    meter = usage.Usage(CPU)
    worker(0.1)
    busy = meter.lap()["workers_cpu_cores"] * (time.perf_counter() - start)
    assert busy >= 0.1
    time.sleep(0.05)
    assert meter.lap()["workers_cpu_cores"] * 0.05 < 0.1 <= busy  # it waits to be told


def test_memory_of_the_tree_is_that_of_the_process_and_its_workers(worker):
    meter = usage.Usage(CPU)
    before = meter.lap()
    pid = worker(0.0, 64 * MEGABYTE)
    after = meter.lap()
    assert after["peak_rss_bytes"] >= before["peak_rss_bytes"] > 0
    assert host.rss_bytes(pid) >= 64 * MEGABYTE
    assert after["peak_tree_rss_bytes"] >= host.rss_bytes(os.getpid()) // 2 + 64 * MEGABYTE


def _spin_once(queue):
    _spin(0.5)
    queue.put(time.process_time())
    time.sleep(60)


def test_other_programs_are_seen(monkeypatch):
    monkeypatch.setattr(usage, "OTHERS_EVERY_S", 0.3)
    queue = multiprocessing.get_context("fork").SimpleQueue()
    meter, start = usage.Usage(CPU), time.perf_counter()
    assert "others_cpu_cores" not in meter.lap()
    with other_program(_spin_once, queue):
        taken_s = queue.get()
        time.sleep(max(0.0, start + 0.31 - time.perf_counter()))
        others_s = meter.lap()["others_cpu_cores"] * (time.perf_counter() - start)
    assert others_s >= taken_s - 0.1  # hundredths, of each core


@pytest.mark.parametrize(("own_s", "others"), [(0.5, 1.25), (3.0, 0.0)])
def test_what_we_took_is_not_others(monkeypatch, own_s, others):
    monkeypatch.delenv("RANK", raising=False)
    now, own = iter([0.0, 0.5, 2.0, 2.1]), iter([0.0, own_s / 2, own_s, own_s])
    busy = iter([(10.0, 0.0), (13.0, 0.0)])
    times = SimpleNamespace(perf_counter=lambda: next(now), process_time=lambda: next(own))
    monkeypatch.setattr(usage, "time", times)
    monkeypatch.setattr(usage, "cores_cpu_s", lambda: next(busy))
    meter = usage.Usage(CPU)
    figures = [meter.lap().get("others_cpu_cores") for _ in range(3)]
    assert figures == [None, others, others]


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
def test_a_gpu_that_cannot_be_asked_is_asked_once_and_left_out():
    meter = usage.Usage(torch.device("cuda"))
    assert all("gpu_busy_share" not in meter.lap() for _ in range(3))
    assert not meter._asks_nvml


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_the_memory_of_tensors_on_the_device_is_counted():
    device = torch.device("cuda")
    held = torch.empty(64 * MEGABYTE, dtype=torch.uint8, device=device)
    lap = usage.Usage(device).lap()
    assert lap["peak_device_bytes"] >= held.numel()
    assert 0.0 <= lap.get("gpu_busy_share", 0.0) <= 1.0


def test_another_program_is_named_with_its_cores(monkeypatch):
    monkeypatch.setattr(usage, "NUM_PROGRAMS", 1000)
    monkeypatch.setattr(usage, "LEAST_CORES", 0.0)
    with other_program(_spin, 30) as other:
        watch = usage.MachineWatch()
        time.sleep(0.5)
        use = watch.lap()
    mine = next(program for program in use.programs if program.pid == other)
    assert 0 < mine.cores < use.others_cores + 0.1
    assert mine.name


def test_our_own_work_and_that_of_ended_children_is_ours():
    watch = usage.MachineWatch()
    _spin(0.2)
    child = forked(_spin, 0.3)
    child.join()
    use = watch.lap()
    assert use.own_cores * use.wall_s >= 0.45
    assert os.getpid() not in {program.pid for program in use.programs}
    assert child.pid not in {program.pid for program in use.programs}


def test_the_share_of_throttled_periods_is_that_since_the_last_lap(tmp_path):
    (tmp_path / "cpu.max").write_text("50000 100000")
    stat = tmp_path / "cpu.stat"
    stat.write_text("nr_periods 100\nnr_throttled 10\nthrottled_usec 5\n")
    watch = usage.MachineWatch(host.Cgroups(tmp_path, tmp_path / "own"))
    stat.write_text("nr_periods 110\nnr_throttled 16\nthrottled_usec 9\n")
    assert watch.lap().throttled_share == pytest.approx(0.6)
    assert watch.lap().throttled_share == 0.0


def test_waiting_for_memory_is_a_share_of_the_time(tmp_path):
    pressure = tmp_path / "memory"
    pressure.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=1000\nfull total=5\n")
    watch = usage.MachineWatch(pressure=pressure)
    time.sleep(0.05)
    pressure.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=11000\nfull total=5\n")
    use = watch.lap()
    assert use.stalled_share == pytest.approx(0.01 / use.wall_s)
