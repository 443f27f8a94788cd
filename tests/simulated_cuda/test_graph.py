"""A step that cannot be captured on the simulated device runs kernel by kernel."""

import pytest

from framework.measure.clock import CudaClock
from tests.conftest import make_records, write_store
from tests.simulated_cuda import works
from tests.simulated_cuda.host import make_loader
from tests.simulated_cuda.patch import simulated
from tests.simulated_cuda.tensors import CUDA
from tests.simulated_cuda.training import Square, train


class Reads(Square):
    """Reads its loss on the host, which no capture allows."""

    def __call__(self, model, batch):
        outcome = super().__call__(model, batch)
        assert outcome.loss.item() >= 0
        return outcome


class Slow(Square):
    """Takes a second of the device."""

    SECONDS = 1.0

    def __init__(self, device):
        self.device = device

    def __call__(self, model, batch):
        self.device.current.run(lambda: None, self.SECONDS)
        return super().__call__(model, batch)


@pytest.mark.parametrize("seed", range(4))
def test_a_capture_that_fails_keeps_no_memory_and_trains_on(tmp_path, seed):
    path = write_store(str(tmp_path / "x.h5"), make_records(22))
    said = []
    with simulated(seed) as device:
        loader = make_loader("stream", path)
        numbers = train(loader, 3, CUDA, graphed=True, objective=Reads(), say=said.append)
        loader.close()
    assert numbers == works._trained(path)
    assert device.num_pools == 0
    [note] = said
    assert "cannot be captured (operation not permitted when stream is capturing)" in note


@pytest.mark.parametrize("seed", range(8))
def test_the_time_of_warm_up_steps_is_that_of_their_stream(tmp_path, seed):
    path = write_store(str(tmp_path / "x.h5"), make_records(12))  # as many batches as warm-ups
    with simulated(seed) as device:
        loader = make_loader("plain", path)
        clock = CudaClock(CUDA)
        train(loader, 1, CUDA, graphed=True, objective=Slow(device), mark=clock.mark)
        loader.close()
        device.synchronize()
        forward = clock.spans()["forward"]
    assert forward.num_steps == 3
    assert forward.total_s >= 3 * Slow.SECONDS
