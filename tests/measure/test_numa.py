"""A rank on a host with two sockets, whose files are made here."""

import os
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch

from framework.measure import host, numa
from framework.measure.numa import stay_beside

GPU = torch.device("cuda", 1)


@pytest.fixture
def socket_of(tmp_path, monkeypatch):
    """Yield a function that writes the system's files: the GPU's node, and the node's cores."""
    before = os.sched_getaffinity(0)
    monkeypatch.setattr(numa, "SYSTEM", tmp_path)
    monkeypatch.setattr(host, "_before", [])
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    gpu = SimpleNamespace(pci_domain_id=0, pci_bus_id=0xDC, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)

    def make(node, cores):
        folder = tmp_path / "bus/pci/devices/0000:dc:00.0"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
        folder = tmp_path / "devices/system/node/node1"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cores}\n")

    yield make
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread), before)


needs_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


@needs_cores
def test_a_rank_stays_on_its_gpus_node_and_so_do_its_threads(socket_of):
    mine, total = max(os.sched_getaffinity(0)), host.num_cores()
    go, seen = threading.Event(), []
    thread = threading.Thread(target=lambda: go.wait() and seen.append(os.sched_getaffinity(0)))
    thread.start()
    socket_of(1, f"{mine},700-703")
    stay_beside(GPU)
    go.set()
    thread.join()
    assert os.sched_getaffinity(0) == {mine}
    assert seen == [{mine}]
    assert host.num_cores() == total  # the ranks share all


@pytest.mark.parametrize(("node", "cores"), [(-1, "0-63"), (1, "700-703"), (1, ""), (1, "0-4095")])
def test_without_a_node_or_one_of_its_cores_nothing_changes(node, cores, socket_of):
    before = os.sched_getaffinity(0)
    socket_of(node, cores)
    stay_beside(GPU)
    assert os.sched_getaffinity(0) == before
