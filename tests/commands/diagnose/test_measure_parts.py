import math
import os
import sys
from contextlib import closing
from types import SimpleNamespace

import pytest
import torch

from framework.cli.arguments import Grant
from framework.cli.hydra_app import composed
from framework.commands.diagnose import measure_parts
from framework.commands.diagnose import measure_parts as module
from framework.config.targets import ROOT
from framework.measure import host, usage
from framework.store.hdf5_store import HDF5Store
from framework.trials.probe import Rate
from tests.commands.diagnose.setting import setting, write_photos
from tests.conftest import make_records, write_store
from tests.diagnosis.cases import facts

SMALL = ["model=resnet9", "model.width=2", "batch_size=8"]


def silent(_):
    pass


def test_every_part_of_a_run_on_images_has_a_rate(tmp_path):
    photos = write_photos(tmp_path / "photos")
    words = ["data=folder", f"data.train={photos}", "transform=resize", "transform.size=[32,32]"]
    facts = measure_parts.gather_facts(setting(*SMALL, *words), 1.0, silent)
    names = ("read", "prepare", "loader_rate", "other", "compute", "whole")
    assert all(getattr(facts, name) > 0 for name in names)
    assert facts.read > facts.prepare
    assert facts.prepare_system_cores >= 0
    storage = facts.storage
    assert (storage.form, storage.image_size, storage.even) == ("folder", (120, 160), True)
    assert facts.convolutional
    assert facts.copy is None


def test_a_function_in_a_thread_slows_a_step_of_small_operations(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from planted.loading import PLANTED

    planted = next(planted for planted in PLANTED if planted.cause == "slowed_step")
    configured = composed(planted.words(tmp_path), Grant(frozenset({"allow_targets"}), ""))
    with closing(measure_parts.Setting(*configured, threads=1).probe()) as probe:
        alone = probe.compute(1.0, 0.3)
        together = probe.train(1.0, 0.3)
    rates = {"spans_s": together.spans_s, "compute_spans_s": alone.spans_s}
    assert facts(**rates).slowed_share > 0.25
    assert together.spans_s["wait"] < sum(together.spans_s.values()) / 2


CLIPS = (
    *("data=dataset", "data.train={_target_: tests.data.own_items.Clips, count: 40}"),
    *("data.fields=[wave,label]", "augment=none", "objective.input=wave", "batch_size=8"),
    *("model=null", "+model._target_=torch.nn.Linear", "+model.in_features=3"),
    *("+model.out_features=2", "allow_targets=[tests]"),
)


def of_dataset(*words):
    grant = Grant(frozenset({"allow_targets"}), "")
    return measure_parts.Setting(*composed([*CLIPS, *words], grant))


def test_a_dataset_of_the_users_is_measured_by_one_thread():
    facts = measure_parts.gather_facts(of_dataset("workers.num=1"), 0.5, silent)
    assert facts.prepare > 0
    assert (facts.read, facts.prepare_two) == (None, None)
    assert (facts.workers, facts.kind, facts.has_function) == (1, "process", True)
    storage = facts.storage
    assert (storage.form, storage.record_bytes, storage.draws) == ("dataset", 20, True)
    assert "input.dataset={_target_: tests.data.own_items.Clips, count: 40}" in storage.pack_words
    assert "'input.fields=[wave, label]'" in storage.pack_words


@pytest.mark.parametrize(
    ("words", "packed"),
    [
        ("data.fields=[wave,label,text]", "'input.fields=[wave, label, text]' output"),
        ("data.ragged=[wave]", "'input.kinds={wave: ragged}' output"),
        ("data.collate=tests.data.own_items.fields", None),
    ],
)
def test_a_dataset_is_packed_as_it_is_read_if_a_store_takes_it(words, packed):
    with closing(of_dataset("workers.num=0", "data.fields=null", words).probe()) as probe:
        words = measure_parts.storage_of_items(probe.assembly.train_source, probe.config).pack_words
    assert packed in words if packed else words == ""


def test_a_store_and_its_shards_are_seen(tmp_path):
    path = write_store(str(tmp_path / "c.h5"), make_records(40))
    storage = measure_parts.storage_of(HDF5Store(path), {"data": {"train": path, "val": None}})
    assert (storage.form, storage.encoding) == ("hdf5", "raw")
    assert storage.record_bytes == 3 * 4 * 4 + 8
    assert storage.cached == 1.0


IDLE = usage.MachineUse(1.0)


@pytest.fixture
def probe():
    with closing(setting("data=synthetic", "batch_size=8").probe()) as probe:
        yield probe


def test_a_run_has_figures_of_its_machine(probe):
    known = module.machine_of(probe)
    assert known["all_cores"] == os.cpu_count()
    assert known["allowed_cores"] == len(os.sched_getaffinity(0))
    assert (known["quota_cores"] is None) == (host.Cgroups().cores() == math.inf)
    assert 0 < known["free_memory_bytes"] <= known["memory_bytes"]
    assert known["num_threads"] == torch.get_num_threads()


def test_too_many_threads_are_compared_with_one_per_core(probe):
    cores, threads = module.host.num_cores(), torch.get_num_threads()
    torch.set_num_threads(4 * cores)
    try:
        known = module.try_machine(probe, 0.5, IDLE)
    finally:
        torch.set_num_threads(threads)
    assert known["fewer_threads"] == cores
    assert known["fewer_threads_gain"] > 0
    assert known["fewer_threads_cores"] > 0


def test_on_fewer_cores_than_the_machine_has_all_are_tried_and_given_back(probe):
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("needs two cores")
    try:
        os.sched_setaffinity(0, {min(before)})
        known = module.try_machine(probe, 0.2, usage.MachineUse(1.0, own_cores=1.0))
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        module.host.move_threads(before)
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
        known = module._without_opencv(probe, 1.0)
    assert known == {"opencv_threads": 16, "no_opencv_gain": 1.5}
    assert done == ["train", 0, "train", 16]


def test_the_disk_of_a_folder_is_read_by_its_files(tmp_path):
    photos = write_photos(tmp_path / "photos")
    words = ["data=folder", f"data.train={photos}", "transform=resize", "transform.size=[16,16]"]
    with closing(setting(*SMALL, *words).probe()) as probe:
        rate = module.read_disk(probe, 0.2)
    assert rate is None or min(rate) > 0
