import threading
import time
from pathlib import Path

import pytest
import torch

from framework.contracts.data import DRAW_KEYS, MicroBatch
from framework.errors import ConfigError
from framework.order.sampler import SamplerOrder
from framework.order.weighted import WeightedOrder
from framework.transform.random_resized_crop import RandomResizedCrop
from tests.conftest import children_of_this_process, settled
from tests.contract import cases

CROP = RandomResizedCrop([6, 5], [0.3, 1.0], [0.75, 1.33], 0.5, 0.0, True)
ORDERS = [
    {},
    {"batch_size": 3, "accumulate": 2},
    *({"world_size": 3, "rank": 2}, {"limit": 5}, {"training": False}),
]
every = pytest.mark.parametrize("kind", cases.SOURCES)
every_reader = pytest.mark.parametrize("kind", cases.READERS)
every_way = pytest.mark.parametrize(("kind", "num_workers", "how"), cases.KINDS_AND_WAYS)


@pytest.fixture
def make():
    """Yield a function that makes sources, which are closed at the end, twice."""
    made = []

    def source(kind, *args, **options):
        made.append(cases.make_source(kind, *args, **options))
        return made[-1]

    yield source
    for item in made * 2:
        item.close()


@every
def test_batches_follow_the_order_and_their_index_numbers_the_records(make, kind):
    for options in ORDERS:
        source = make(kind, **options)
        assert source.order.num_records == source.manifest.num_records == 10
        for epoch in range(2):
            expected = cases.shares(source.order, epoch)
            result = [(batch["index"], *rest) for batch, *rest in cases.micros(source, epoch)]
            if kind == "synthetic":
                expected = [(len(indices), *rest) for indices, *rest in expected]
                result = [(len(indices), *rest) for indices, *rest in result]
            assert result == expected


@every
def test_a_batch_has_the_fields_of_its_records_and_images_are_bytes_in_planes(make, kind):
    source = make(kind)
    records = cases.plain(source.sample(10))
    for micro in source.batches(1):
        assert isinstance(micro, MicroBatch)
        assert set(micro.batch) == {"index", *source.manifest.fields}
        assert micro.batch["index"].dtype == torch.int64
        assert len({len(tensor) for tensor in micro.batch.values()}) == 1
        assert micro.batch["image"].dtype == torch.uint8
        assert micro.batch["image"].dim() == 4
        assert micro.batch["image"].shape[1] == 3
        if kind in cases.READERS:
            batch = cases.plain(micro.batch)
            for name in ("label", "image"):
                assert batch[name] == [records[name][index] for index in batch["index"]]


@every
def test_an_epoch_is_the_same_at_any_time_and_a_later_start_is_its_tail(make, kind):
    source = make(kind, accumulate=2)
    whole = cases.micros(source, 1)
    cases.micros(source, 2)
    for start in range(4):
        passed = [number for number, (*_, last) in enumerate(whole) if last][:start]
        assert cases.micros(source, 1, start) == whole[passed[-1] + 1 if passed else 0 :]


@every
def test_a_stream_is_its_epochs_one_after_another(make, kind):
    source = make(kind, accumulate=2)
    if not source.reads_on:
        pytest.skip("it reads epoch by epoch")
    expected = [micro for epoch in range(3) for micro in cases.micros(source, epoch)]
    streamed = [(cases.plain(batch), *rest) for batch, *rest in source.stream(0, 1, 6)]
    assert streamed == expected[2 : 2 + len(streamed)]
    assert sum(last for *_, last in streamed) == 6
    assert cases.micros(source, 1) == expected[len(expected) // 3 : 2 * len(expected) // 3]


class Drawn:
    """A batch sampler that draws records with repeats, by the epoch."""

    def __init__(self, num_records):
        self.num_records, self.epoch = num_records, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 4

    def __iter__(self):
        draws = torch.Generator().manual_seed(self.epoch)
        for size in (3, 4, 2, 4):
            yield torch.randint(self.num_records, [size], generator=draws)


@every_reader
def test_a_sampler_of_the_users_decides_the_records_of_each_batch(make, kind):
    choice = SamplerOrder(Drawn, ("num_records",), "mine.Drawn")
    options = {"order_choice": choice, "batch_size": 3, "limit": 9}
    if kind == "dali":
        with pytest.raises(ConfigError, match=r"C174.*largest batch of a sampler"):
            make(kind, **options)
        return
    sampler = Drawn(9)
    sampler.set_epoch(2)
    used = [0, 1, 2, 3, 4, 5, 6, 7, 9]
    expected = [[used[place] for place in own] for own in sampler]
    for num, how in cases.TAKEN.get(kind, cases.WAYS):
        source = make(kind, num_workers=num, worker_kind=how, **options)
        assert not source.reads_on
        assert [batch["index"] for batch, *_ in cases.micros(source, 2)] == expected
        assert [batch["index"] for batch, *_ in cases.micros(source, 2, 3)] == expected[3:]
    assert make(kind, training=False, **options).order.sampler is None


@every_reader
def test_workers_do_not_change_a_batch(make, kind):
    ways = cases.TAKEN.get(kind, cases.WAYS)
    for transform in (None,) if kind in cases.UNTRANSFORMED else (None, CROP):
        result = []
        for num, how in ways:
            source = make(kind, 10, transform=transform, num_workers=num, worker_kind=how)
            result.append([cases.micros(source, epoch) for epoch in range(2)])
        assert result == result[:1] * len(ways)


def looks(source):
    """Return what a record looks like each time that it comes in epoch 1, by its index."""
    seen = {}
    for batch, *_ in cases.micros(source, 1):
        keys = batch.pop(DRAW_KEYS, batch["index"])
        names = [name for name in batch if name != "index"]
        for place, (index, key) in enumerate(zip(batch["index"], keys, strict=True)):
            seen.setdefault(index, {})[key // 10] = [batch[name][place] for name in names]
    return seen


@pytest.mark.parametrize("kind", [kind for kind in cases.READERS if kind != "dataset"])
def test_a_record_that_comes_again_is_changed_in_another_way(make, kind):
    Path("weights.txt").write_text("6\n" + "0.5\n" * 9)
    options = {"transform": None if kind in cases.UNTRANSFORMED else CROP}
    once = looks(make(kind, 10, **options))
    options["order_choice"] = WeightedOrder(None, "weights.txt")
    ways = [
        looks(make(kind, 10, num_workers=num, worker_kind=how, **options))
        for num, how in cases.TAKEN.get(kind, cases.WAYS)
    ]
    assert ways == ways[:1] * len(ways)
    assert all(times[0] == once[index][0] for index, times in ways[0].items())
    often = ways[0][0]
    assert sorted(often) in (list(range(5)), list(range(6)))
    assert len({repr(look) for look in often.values()}) >= 4  # of small images, two may be alike


@every_way
def test_an_early_close_leaves_nothing_and_the_next_epoch_is_whole(make, kind, num_workers, how):
    threads, children = threading.active_count(), children_of_this_process()
    source = make(kind, 40, num_workers=num_workers, worker_kind=how)
    batches = source.batches(0)
    next(batches)
    batches.close()
    assert how == "process" or threading.active_count() == threads
    indices = [batch["index"] for batch, *_ in cases.micros(source, 1)]
    assert indices == [batch["index"] for batch, *_ in cases.micros(make(kind, 40), 1)]
    source.close()
    assert not settled(children, children_of_this_process)
    assert not settled(set(range(threads + 1)), lambda: {threading.active_count()})


@every_way
def test_a_sample_and_an_epoch_that_is_not_read_start_no_worker(make, kind, num_workers, how):
    threads, children = threading.active_count(), children_of_this_process()
    source = make(kind, num_workers=num_workers, worker_kind=how)
    source.batches(0).close()
    source.sample(3)
    assert source.stages() == {}
    assert (threading.active_count(), children_of_this_process()) == (threads, children)


@every
def test_a_sample_is_evenly_spaced_over_the_store(make, kind):
    spaced = {1: [0], 2: [0, 9], 4: [0, 3, 6, 9], 10: list(range(10)), 99: list(range(10))}
    for count, indices in spaced.items():
        batch = make(kind).sample(count)
        assert {len(tensor) for tensor in batch.values()} == {len(indices)}
        assert kind == "synthetic" or batch["index"].tolist() == indices


STAGES = {
    "hdf5": {"read"},
    "lmdb": {"read"},
    "folder": {"read", "decode", "transform", "collate"},
    "tar": {"read", "decode", "transform", "collate"},
    "parquet": {"read", "decode", "transform", "collate"},
    "dali": set(),  # its own threads
    "synthetic": set(),  # nothing is read
    "dataset": {"read", "collate"},
    "dataset_drawing": {"read", "collate"},
}


@every_way
def test_stages_are_thread_seconds_since_they_were_asked_for(make, kind, num_workers, how):
    source = make(kind, 40, num_workers=num_workers, worker_kind=how)
    start = time.perf_counter()
    cases.micros(source)
    wall_s, stages_s = time.perf_counter() - start, source.stages()
    assert STAGES[kind] <= set(stages_s) <= {"read", "decode", "transform", "collate"}
    assert all(seconds >= 0 for seconds in stages_s.values())
    assert sum(stages_s.values()) <= (num_workers + 1) * wall_s
    assert source.stages() == {}
