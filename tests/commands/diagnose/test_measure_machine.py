import math
import os
import sys
from contextlib import closing
from types import SimpleNamespace

import pytest
import torch

from framework.commands.diagnose import measure_machine as module
from framework.commands.diagnose.measure_machine import measure_machine
from framework.measure.host import Cgroups
from framework.measure.machine_watch import MachineUse
from framework.trials.probe import Rate
from tests.commands.diagnose.setting import setting, write_photos
from tests.conftest import make_records, write_store

SMALL = ["model=resnet9", "model.width=2", "batch_size=8"]
IDLE = MachineUse(1.0)


def silent(_):
    pass


@pytest.fixture
def probe():
    with closing(setting("data=synthetic", "batch_size=8").probe()) as probe:
        yield probe


def test_a_run_has_figures_of_its_machine(probe):
    known = measure_machine(probe, 2.0, IDLE, silent)
    assert known.use is IDLE
    assert known.all_cores == os.cpu_count()
    assert known.allowed_cores == len(os.sched_getaffinity(0))
    assert (known.quota_cores is None) == (Cgroups().cores() == math.inf)
    assert 0 < known.free_memory_bytes <= known.memory_bytes
    assert known.num_threads == torch.get_num_threads()


def test_too_many_threads_are_compared_with_one_per_core(probe):
    cores = module.num_cores()
    with module._set_while(torch.set_num_threads, 4 * cores, torch.get_num_threads()):
        known = module._threads(probe, 0.5, IDLE)
    assert known["fewer_threads"] == cores
    assert known["fewer_threads_gain"] > 0
    assert known["fewer_threads_cores"] > 0


def test_on_fewer_cores_than_the_machine_has_all_are_tried_and_given_back(probe):
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("needs two cores")
    try:
        os.sched_setaffinity(0, {min(before)})
        known = module._cores(probe, 0.2, MachineUse(1.0, own_cores=1.0))
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        module.move_threads(before)
    assert known["all_cores_gain"] > 0


def test_training_without_the_threads_of_opencv_comes_last(monkeypatch, tmp_path):
    """Threads that were off and on again are not the threads of the run."""
    store = write_store(str(tmp_path / "a.h5"), make_records(20))
    done = []
    opencv = SimpleNamespace(getNumThreads=lambda: 16, setNumThreads=done.append)
    rates = iter([100.0, 150.0])

    def train(*_):
        done.append("train")
        return Rate((next(rates),), {})

    monkeypatch.setitem(sys.modules, "cv2", opencv)
    with closing(setting(*SMALL, f"data.train={store}").probe()) as probe:
        monkeypatch.setattr(probe, "train", train)
        known = module._opencv(probe, 1.0)
    assert known == {"opencv_threads": 16, "no_opencv_gain": 1.5}
    assert done == ["train", 0, "train", 16]


def test_the_disk_of_a_folder_is_read_by_its_files(tmp_path):
    photos = write_photos(tmp_path / "photos")
    words = ["data=folder", f"data.train={photos}", "transform=resize", "transform.size=[16,16]"]
    with closing(setting(*SMALL, *words).probe()) as probe:
        rate = module._disk(probe, 0.2)
    assert rate is None or min(rate) > 0
