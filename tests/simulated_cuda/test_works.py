"""Real loaders and captured steps are right on the simulated device, whatever its schedule."""

from functools import partial
from itertools import islice

import pytest
import torch

from framework.errors import ResourceError
from framework.loader import prefetch, stream
from framework.measure.clock import CudaClock
from tests.conftest import make_records, write_store
from tests.simulated_cuda import host, mutants, patch, tensors, training

KINDS = ("plain", "prefetch", "stream")
WAYS = [(kind, stage) for kind in KINDS for stage in ("none", "ram", "device", "dali")]
LOADS = (host.loads, host.loads_aside, host.leaves_early, host.loads_on, host.loads_nested)
FIRST_SCHEDULES = range(2)
MORE_SCHEDULES = range(2, 60)
MUTANT_SCHEDULES = range(100)  # stops at the first that fails


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Write a store whose last batch is short, and return its path."""
    return write_store(str(tmp_path_factory.mktemp("store") / "x.h5"), make_records(22))


@pytest.fixture(scope="module")
def long_path(tmp_path_factory):
    return write_store(str(tmp_path_factory.mktemp("long") / "x.h5"), make_records(400))


@pytest.mark.parametrize(
    "schedules",
    [FIRST_SCHEDULES, pytest.param(MORE_SCHEDULES, marks=pytest.mark.slow)],
    ids=["some schedules", "many schedules"],
)
@pytest.mark.parametrize(("kind", "stage"), WAYS)
def test_every_batch_arrives_whole(path, kind, stage, schedules):
    for load in LOADS:
        if (load, stage) != (host.loads_nested, "ram"):  # pieces are of fields that are not nested
            work = partial(load, kind=kind, stage=stage)
            assert not list(mutants.failing(work, path, schedules)), load.__name__


@pytest.mark.parametrize(("kind", "anew_at"), [("plain", 7), ("prefetch", None), ("stream", 1)])
def test_captured_steps_learn_what_the_cpu_learns(path, kind, anew_at):
    work = partial(host.trains, kind=kind, anew_at=anew_at)
    assert not list(mutants.failing(work, path, FIRST_SCHEDULES))


@pytest.mark.parametrize("guard", mutants.MUTANTS)
def test_without_a_guard_some_schedule_goes_wrong(path, guard):
    work, broken = mutants.MUTANTS[guard]
    assert next(mutants.failing(work, path, MUTANT_SCHEDULES, broken), None) is not None


@pytest.mark.parametrize("size", [1, 22])
def test_batches_of_one_record_and_of_all_arrive_whole(path, size, monkeypatch):
    monkeypatch.setattr(host, "BATCH_SIZE", size)
    host.expected.cache_clear()
    assert not list(mutants.failing(host.loads, path, FIRST_SCHEDULES))
    host.expected.cache_clear()


def test_batches_before_an_error_arrive_whole(path):
    def breaks(number, batch):
        if number == 3:
            raise ValueError("a record is damaged")
        return batch

    whole = torch.cat([batch["label"] for batch in host.expected(path, 0)]).tolist()
    for seed in range(4):
        labels = []
        with patch.simulated(seed):
            loader = host.changed(host.make_loader("stream", path), breaks)
            with pytest.raises(ValueError, match="damaged"):
                labels.extend(micro.batch["label"] for micro in loader.epoch(0))
            labels = torch.cat([label.cpu() for label in labels]).tolist()
            loader.close()
        assert labels == whole[:12]


def test_values_that_are_no_tensors_stay_as_they_are(path):
    with patch.simulated(0):
        named = lambda number, batch: {**batch, "name": str(number)}  # noqa: E731
        loader = host.changed(host.make_loader("stream", path), named)
        names = [micro.batch["name"] for micro in loader.epoch(0)]
        loader.close()
    assert names == ["0", "1", "2", "3", "4", "5"]


def blocks_of(path, kind, stage, seed):
    """Return how many blocks 20 batches need, and how many more 100 do."""
    with patch.simulated(seed) as device:
        loader = host.make_loader(kind, path, stage)
        counts = []
        for epoch, count in ((0, 20), (1, 100)):
            for micro in islice(loader.epoch(epoch), count):
                host.step(micro.batch)
                del micro
            counts.append(device.allocator.num_blocks + device.pinned.num_blocks)
        loader.close()
    return counts[0], counts[1] - counts[0]


@pytest.mark.parametrize(
    ("kind", "stage"),
    [
        ("prefetch", "none"),
        ("stream", "ram"),
        *[pytest.param("stream", stage, marks=pytest.mark.slow) for stage in ("device", "dali")],
    ],
)
def test_memory_does_not_grow_with_the_number_of_batches(long_path, kind, stage):
    few, more = blocks_of(long_path, kind, stage, seed=1)  # in which the host could be far ahead
    assert few < 80
    assert more < 40


@pytest.mark.parametrize("kind", ["prefetch", pytest.param("stream", marks=pytest.mark.slow)])
def test_without_a_pace_the_host_fills_the_memory(long_path, kind, monkeypatch):
    monkeypatch.setattr(prefetch.Pace, "end_pass", lambda *_: None)
    assert sum(blocks_of(long_path, kind, "none", 1)) > 100


def test_the_host_is_at_most_six_passes_ahead_and_makes_few_events():
    for seed in range(5):
        done = []
        with patch.simulated(seed) as device:
            pace = prefetch.Pace(tensors.CUDA)
            for number in range(60):
                device.current.run(partial(done.append, number), 1.0)
                pace.end_pass()
                assert number + 1 - len(done) <= prefetch.RUN_AHEAD
            assert len(pace._done) == prefetch.RUN_AHEAD // 2


@pytest.mark.slow
def test_with_a_stream_for_each_epoch_memory_grows(path, monkeypatch):
    def blocks(epochs):
        with patch.simulated(1) as device:
            loader = host.make_loader("stream", path)
            for epoch in range(epochs):
                host.take(loader, epoch)
            loader.close()
        return device.allocator.num_blocks

    assert blocks(30) == pytest.approx(blocks(15), abs=15)
    started = stream.StreamLoader.epoch

    def in_a_new_stream(loader, epoch, start=0):
        loader.stream = torch.cuda.Stream(tensors.CUDA)
        return started(loader, epoch, start)

    monkeypatch.setattr(stream.StreamLoader, "epoch", in_a_new_stream)
    assert blocks(30) > blocks(15) + 30


class Reads(training.Square):
    """Reads its loss on the host, which no capture allows."""

    def __call__(self, model, batch):
        outcome = super().__call__(model, batch)
        assert outcome.loss.item() >= 0
        return outcome


class Slow(training.Square):
    """Takes a second of the device."""

    def __init__(self, device):
        self.device = device

    def __call__(self, model, batch):
        self.device.current.run(lambda: None, 1.0)
        return super().__call__(model, batch)


def test_a_capture_that_fails_ends_the_run(path):
    with patch.simulated(FIRST_SCHEDULES[0]):
        loader = host.make_loader("stream", path)
        with pytest.raises(ResourceError, match="cannot be captured"):
            training.train(loader, 3, tensors.CUDA, graphed=True, objective=Reads())
        loader.close()


def test_the_time_of_warm_up_steps_is_that_of_their_stream(tmp_path):
    path = write_store(str(tmp_path / "x.h5"), make_records(12))  # as many batches as warm-ups
    for seed in range(3):
        with patch.simulated(seed) as device:
            loader = host.make_loader("plain", path)
            clock = CudaClock(tensors.CUDA)
            training.train(
                loader, 1, tensors.CUDA, graphed=True, objective=Slow(device), mark=clock.mark
            )
            loader.close()
            device.synchronize()
            forward = clock.spans()["forward"]
        assert forward.num_steps == 3
        assert forward.total_s >= 3.0
