"""The kernel in Triton's interpreter, and compiled for a GPU without one."""

import importlib
import sys

import pytest
import torch

from framework.order.draws import DeviceDraws, draw_kernel

pytest.importorskip("triton", reason="needs Triton")
MODULE = "framework.order.draw_kernel"


@pytest.fixture
def interpreted(monkeypatch):
    """Yield the module, imported so that Triton runs its kernel on the CPU."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield importlib.import_module(MODULE)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)


def made(draws, indices, epoch):
    key, *mirror = draws.keys(epoch)
    return draws._launched(indices, key, *(mirror or [None]))


@pytest.mark.parametrize("alternating", [(), (0, 4)], ids=["none", "two"])
@pytest.mark.parametrize("epoch", [0, 1])
def test_the_numbers_are_those_of_the_operators(alternating, epoch, interpreted):
    indices = torch.cat([torch.randperm(300), torch.tensor([2**31, 2**40 + 1])])
    for places in (indices, indices[::3]):  # side by side in memory, and apart
        draws = DeviceDraws(3, 5, alternating)
        assert made(draws, places, epoch).equal(draws.by_operators(places, *draws.keys(epoch)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
@pytest.mark.parametrize("alternating", [(), (2,)], ids=["none", "one"])
def test_a_gpu_gives_the_numbers_of_the_cpu(alternating):
    draws = DeviceDraws(3, 5, alternating)
    indices = torch.randperm(10_000)
    for epoch in range(3):
        keys = draws.keys(epoch)
        assert draws.of(indices.cuda(), *keys).cpu().equal(draws.of(indices, *keys))
    assert draw_kernel.failure is None
