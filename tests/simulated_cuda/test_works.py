"""Real loaders and captured steps are right on the simulated device, whatever its schedule."""

from functools import partial
from itertools import islice

import pytest
import torch

from framework.loader.queue import RUN_AHEAD, Pace
from framework.loader.stream import StreamLoader
from tests.conftest import make_records, write_store
from tests.simulated_cuda import works
from tests.simulated_cuda.host import changed, make_loader, step, take
from tests.simulated_cuda.mutants import MUTANTS, failing
from tests.simulated_cuda.patch import simulated
from tests.simulated_cuda.tensors import CUDA

SCHEDULES = range(12)
FIRST_SCHEDULES = range(4)  # where a slow test has the others
MORE_SCHEDULES = range(4, 60)
STAGES = ["none", "ram", "device", "dali"]
MUTANT_SCHEDULES = range(100)  # stops at the first that fails


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Write a store whose last batch is short, and return its path."""
    return write_store(str(tmp_path_factory.mktemp("store") / "x.h5"), make_records(22))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", ["plain", "prefetch", "stream"])
def test_every_batch_arrives_whole(path, kind, stage):
    work = lambda path, _: works.loads(path, kind, stage)  # noqa: E731
    assert not list(failing(work, path, FIRST_SCHEDULES))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", ["plain", "prefetch", "stream"])
def test_every_batch_arrives_whole_in_a_side_stream(path, kind, stage):
    work = lambda path, device: works.loads_on_a_side_stream(path, kind, stage, device)  # noqa: E731
    assert not list(failing(work, path, SCHEDULES))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", ["plain", "prefetch", "stream"])
def test_an_epoch_that_is_left_early_spoils_nothing(path, kind, stage):
    work = lambda path, _: works.leaves_early(path, kind, stage)  # noqa: E731
    assert not list(failing(work, path, FIRST_SCHEDULES))


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", ["plain", "prefetch", "stream"])
def test_no_other_schedule_goes_wrong(path, kind, stage):
    nested = () if stage == "ram" else (works.loads_nested,)
    for load in (works.loads, works.leaves_early, *nested):
        work = lambda path, _, load=load: load(path, kind, stage)  # noqa: E731
        assert not list(failing(work, path, MORE_SCHEDULES))


@pytest.mark.parametrize("kind", ["plain", "prefetch", "stream"])
def test_captured_steps_learn_what_the_cpu_learns(path, kind):
    work = lambda path, _: works.trains(path, kind)  # noqa: E731
    assert not list(failing(work, path, SCHEDULES))


@pytest.mark.parametrize("kind", ["plain", "stream"])
@pytest.mark.parametrize("step", [1, pytest.param(3, marks=pytest.mark.slow), 7])
def test_steps_that_are_captured_anew_learn_what_the_cpu_learns(path, kind, step):
    work = lambda path, _: works.trains(path, kind, step)  # noqa: E731
    assert not list(failing(work, path, SCHEDULES))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.guard)
def test_without_a_guard_some_schedule_goes_wrong(path, mutant):
    assert next(failing(mutant.work, path, MUTANT_SCHEDULES, mutant.broken), None) is not None


@pytest.mark.parametrize("size", [1, 22])
def test_batches_of_one_record_and_of_all_arrive_whole(path, size, monkeypatch):
    monkeypatch.setattr("tests.simulated_cuda.host.BATCH_SIZE", size)
    works._expected.cache_clear()
    work = lambda path, _: works.loads(path, "stream")  # noqa: E731
    try:
        assert not list(failing(work, path, SCHEDULES))
    finally:
        works._expected.cache_clear()


def test_what_came_before_an_error_arrives_whole(path):
    def breaks(number, batch):
        if number == 3:
            raise ValueError("a record is damaged")
        return batch

    whole = torch.cat([batch["label"] for batch in works._expected(path, 0)]).tolist()
    for seed in SCHEDULES:
        labels = []
        with simulated(seed):
            loader = changed(make_loader("stream", path), breaks)
            with pytest.raises(ValueError, match="damaged"):
                labels.extend(micro.batch["label"] for micro in loader.epoch(0))
            labels = torch.cat([label.cpu() for label in labels]).tolist()
            loader.close()
        assert labels == whole[:12]


def test_values_that_are_no_tensors_stay_as_they_are(path):
    with simulated(0):
        loader = changed(
            make_loader("stream", path), lambda number, batch: {**batch, "name": str(number)}
        )
        batches = [micro.batch for micro in loader.epoch(0)]
        loader.close()
    assert [batch["name"] for batch in batches] == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize("stage", ["none", "device", "dali"])
@pytest.mark.parametrize("kind", ["plain", "prefetch", "stream"])
def test_nested_tensors_arrive_whole(path, kind, stage):
    work = lambda path, _: works.loads_nested(path, kind, stage)  # noqa: E731
    assert not list(failing(work, path, FIRST_SCHEDULES))


def blocks_of(path, kind, stage, seed):
    """Return how many blocks 20 batches need, and how many more 200 do."""
    with simulated(seed) as device:
        loader = make_loader(kind, path, stage)
        counts = []
        for epoch, count in ((0, 20), (1, 200)):
            for micro in islice(loader.epoch(epoch), count):
                step(micro.batch)
                del micro
            counts.append(device.allocator.num_blocks + device.pinned.num_blocks)
        loader.close()
    return counts[0], counts[1] - counts[0]


@pytest.fixture(scope="module")
def long_path(tmp_path_factory):
    return write_store(str(tmp_path_factory.mktemp("long") / "x.h5"), make_records(800))


@pytest.mark.parametrize(
    "stage", ["none", "ram", *(pytest.param(x, marks=pytest.mark.slow) for x in ("device", "dali"))]
)
@pytest.mark.parametrize("kind", ["plain", "prefetch", "stream"])
def test_memory_does_not_grow_with_the_number_of_batches(long_path, kind, stage):
    for seed in (1, 2):  # without a limit, the host runs far ahead in these
        few, more = blocks_of(long_path, kind, stage, seed)
        assert few < 80
        assert more < 40


def test_the_host_is_at_most_six_passes_ahead_and_makes_few_events():
    for seed in range(5):
        done = []
        with simulated(seed) as device:
            pace = Pace(CUDA)
            for number in range(60):
                device.current.run(partial(done.append, number), 1.0)
                pace.end_pass()
                assert number + 1 - len(done) <= RUN_AHEAD
            assert len(pace._done) == RUN_AHEAD // 2


@pytest.mark.parametrize("kind", ["prefetch", "stream"])
def test_without_a_pace_the_host_fills_the_memory(long_path, kind, monkeypatch):
    monkeypatch.setattr(Pace, "end_pass", lambda *_: None)
    assert sum(blocks_of(long_path, kind, "none", 1)) > 200


@pytest.mark.slow
def test_with_a_stream_for_each_epoch_memory_grows(path, monkeypatch):
    def blocks(epochs):
        with simulated(1) as device:
            loader = make_loader("stream", path)
            for epoch in range(epochs):
                take(loader, epoch)
            loader.close()
        return device.allocator.num_blocks

    assert blocks(30) == pytest.approx(blocks(15), abs=15)
    started = StreamLoader.epoch

    def in_a_new_stream(loader, epoch, start=0):
        loader.stream = torch.cuda.Stream(CUDA)
        return started(loader, epoch, start)

    monkeypatch.setattr(StreamLoader, "epoch", in_a_new_stream)
    assert blocks(30) > blocks(15) + 30
