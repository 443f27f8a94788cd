import threading
import time
from pathlib import Path

import pytest
import torch

from framework.contracts.data import DRAW_KEYS, MicroBatch
from framework.order.weighted import WeightedOrder
from framework.transform.random_resized_crop import RandomResizedCrop
from tests.conftest import children_of_this_process, settled
from tests.contract.cases import (
    KINDS_AND_WAYS,
    READERS,
    SOURCES,
    TAKEN,
    UNTRANSFORMED,
    WAYS,
    make_source,
    micros,
    plain,
    shares,
)

CROP = RandomResizedCrop([6, 5], [0.3, 1.0], [0.75, 1.33], 0.5, 0.0, True)
ORDERS = [
    {},
    {"batch_size": 3, "accumulate": 2},
    {"world_size": 3, "rank": 2},
    {"limit": 5},
    {"training": False},
]


@pytest.fixture
def make():
    """Yield a function that makes sources, which are closed at the end."""
    made = []

    def source(kind, *args, **options):
        made.append(make_source(kind, *args, **options))
        return made[-1]

    yield source
    for item in made:
        item.close()


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("options", ORDERS)
def test_batches_follow_the_order(make, kind, options):
    source = make(kind, **options)
    for epoch in range(2):
        result = [
            (len(batch["index"]), weight, last) for batch, weight, last in micros(source, epoch)
        ]
        assert result == [
            (len(indices), weight, last) for indices, weight, last in shares(source.order, epoch)
        ]


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("options", ORDERS)
def test_the_index_is_the_records_number_in_the_store(make, kind, options):
    source = make(kind, **options)
    for epoch in range(2):
        result = [(batch["index"], weight, last) for batch, weight, last in micros(source, epoch)]
        assert result == shares(source.order, epoch)


@pytest.mark.parametrize("kind", SOURCES)
def test_every_batch_has_the_manifests_fields_and_an_index(make, kind):
    source = make(kind)
    for micro in source.batches(0):
        assert isinstance(micro, MicroBatch)
        assert set(micro.batch) == {"index", *source.manifest.fields}
        assert micro.batch["index"].dtype == torch.int64
        assert len({len(tensor) for tensor in micro.batch.values()}) == 1


@pytest.mark.parametrize("kind", SOURCES)
def test_images_are_bytes_with_channels_first(make, kind):
    image = next(make(kind).batches(0)).batch["image"]
    assert image.dtype == torch.uint8
    assert image.dim() == 4
    assert image.shape[1] == 3


@pytest.mark.parametrize("kind", READERS)
def test_a_batch_holds_the_records_its_index_names(make, kind):
    source = make(kind)
    every = plain(source.sample(10))
    for batch, *_ in micros(source, 1):
        assert batch["label"] == [every["label"][index] for index in batch["index"]]
        assert batch["image"] == [every["image"][index] for index in batch["index"]]


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_a_later_start_is_the_tail_of_the_epoch(make, kind, start):
    source = make(kind, accumulate=2)
    whole = micros(source, 1)
    passed = [number for number, (*_, last) in enumerate(whole) if last][:start]
    assert micros(source, 1, start) == whole[passed[-1] + 1 if passed else 0 :]


@pytest.mark.parametrize("kind", SOURCES)
def test_an_epoch_is_the_same_whenever_it_is_asked_for(make, kind):
    source = make(kind)
    first = micros(source, 3)
    micros(source, 4)
    assert micros(source, 3) == first


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("transform", [None, CROP])
def test_workers_do_not_change_a_batch(make, kind, transform):
    if transform is not None and kind in UNTRANSFORMED:
        transform = None
    ways = TAKEN.get(kind, WAYS)
    result = []
    for num, how in ways:
        source = make(kind, 10, transform=transform, num_workers=num, worker_kind=how)
        result.append([micros(source, epoch) for epoch in range(2)])
    assert result == result[:1] * len(ways)


def looks(source):
    """Return what a record looks like each time that it comes in epoch 1, by its index."""
    seen = {}
    for batch, *_ in micros(source, 1):
        keys = batch.pop(DRAW_KEYS, batch["index"])
        names = [name for name in batch if name != "index"]
        for place, (index, key) in enumerate(zip(batch["index"], keys, strict=True)):
            seen.setdefault(index, {})[key // 10] = [batch[name][place] for name in names]
    return seen


@pytest.mark.parametrize("kind", [kind for kind in READERS if kind != "dataset"])
def test_a_record_that_comes_again_is_changed_in_another_way(make, kind):
    Path("weights.txt").write_text("6\n" + "0.5\n" * 9)
    again = WeightedOrder(None, "weights.txt")
    transform = None if kind in UNTRANSFORMED else CROP
    once = looks(make(kind, 10, transform=transform))
    ways = [
        looks(
            make(
                kind, 10, transform=transform, order_choice=again, num_workers=num, worker_kind=how
            )
        )
        for num, how in TAKEN.get(kind, WAYS)
    ]
    assert ways == ways[:1] * len(ways)
    assert all(times[0] == once[index][0] for index, times in ways[0].items())
    often = ways[0][0]
    assert sorted(often) in (list(range(5)), list(range(6)))
    assert len({repr(look) for look in often.values()}) >= 4  # of small images, two may be alike


@pytest.mark.parametrize(("kind", "num_workers", "how"), KINDS_AND_WAYS)
def test_an_early_close_leaves_nothing_and_the_next_epoch_is_whole(make, kind, num_workers, how):
    threads, children = threading.active_count(), children_of_this_process()
    source = make(kind, 40, num_workers=num_workers, worker_kind=how)
    batches = source.batches(0)
    next(batches)
    batches.close()
    assert how == "process" or threading.active_count() == threads
    assert [batch["index"] for batch, *_ in micros(source, 1)] == [
        batch["index"] for batch, *_ in micros(make(kind, 40), 1)
    ]
    source.close()
    assert not settled(children, children_of_this_process)
    assert threading.active_count() <= threads or not settled(
        set(), lambda: {"a thread"} if threading.active_count() > threads else set()
    )


@pytest.mark.parametrize(("kind", "num_workers", "how"), KINDS_AND_WAYS)
def test_an_iterator_that_was_never_started_leaves_nothing(make, kind, num_workers, how):
    threads, children = threading.active_count(), children_of_this_process()
    make(kind, num_workers=num_workers, worker_kind=how).batches(0).close()
    assert (threading.active_count(), children_of_this_process()) == (threads, children)


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(
    ("count", "indices"),
    [(1, [0]), (2, [0, 9]), (4, [0, 3, 6, 9]), (10, list(range(10))), (99, list(range(10)))],
)
def test_a_sample_is_evenly_spaced_over_the_store(make, kind, count, indices):
    assert make(kind).sample(count)["index"].tolist() == indices


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("count", [1, 6, 10, 99])
def test_a_sample_has_as_many_records_as_asked_or_there_are(make, kind, count):
    batch = make(kind, 10, batch_size=4).sample(count)
    assert {len(tensor) for tensor in batch.values()} == {min(count, 10)}


@pytest.mark.parametrize(("kind", "num_workers", "how"), KINDS_AND_WAYS)
def test_a_sample_starts_no_worker(make, kind, num_workers, how):
    threads, children = threading.active_count(), children_of_this_process()
    make(kind, num_workers=num_workers, worker_kind=how).sample(3)
    assert (threading.active_count(), children_of_this_process()) == (threads, children)


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


@pytest.mark.parametrize(("kind", "num_workers", "how"), KINDS_AND_WAYS)
def test_stages_are_thread_seconds_since_they_were_asked_for(make, kind, num_workers, how):
    source = make(kind, 40, num_workers=num_workers, worker_kind=how)
    assert source.stages() == {}
    start = time.perf_counter()
    micros(source)
    wall_s, stages_s = time.perf_counter() - start, source.stages()
    assert STAGES[kind] <= set(stages_s) <= {"read", "decode", "transform", "collate"}
    assert all(seconds >= 0 for seconds in stages_s.values())
    assert sum(stages_s.values()) <= (num_workers + 1) * wall_s
    assert source.stages() == {}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_sample_is_in_no_stage(make, kind):
    source = make(kind)
    source.sample(5)
    assert source.stages() == {}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_source_knows_its_order_and_manifest(make, kind):
    source = make(kind, 10, batch_size=3)
    assert source.order.num_records == source.manifest.num_records == 10
    assert source.order.batch_size == 3


@pytest.mark.parametrize("kind", SOURCES)
def test_closing_twice_does_nothing_more(make, kind):
    source = make(kind)
    next(source.batches(0))
    source.close()
    source.close()
