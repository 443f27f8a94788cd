"""What a source reports of slow records, and how its workers are tuned while a run trains."""

import json
import os
import random
import time
from contextlib import closing

import pytest
import torch

from framework.contracts.loader import LoaderContext
from framework.contracts.waits import Waits, slow_block
from framework.data import dataset, hdf5, synthetic
from framework.data import source as data_source
from framework.data.folder import folder_source
from framework.data.reader import LEAST_S, SlowRead, Usual
from framework.data.source import LiveTuning
from framework.data.workers import MOST_KEPT, MOST_SHOWN, Ledger
from framework.errors import ConfigError
from framework.loader import prefetch, stream, tuner
from framework.loader.plain import PlainLoader
from framework.measure.clock import HostClock
from framework.transform.random_crop import RandomCrop
from framework.transform.resize import Resize
from tests.conftest import make_context, make_records, write_store
from tests.contract.cases import jpeg

KINDS = [(0, "thread"), (2, "thread"), (2, "process")]
LOADERS = {
    "plain": lambda context: PlainLoader(True, context=context),
    "prefetch": lambda context: prefetch.PrefetchLoader(2, True, context=context),
    "stream": lambda context: stream.StreamLoader(2, 2, context=context),
}
HUGE = 4  # the number of the huge image, or of the slow item
SLEEP_S = 0.1


class Sleepy:
    """A Dataset of which one item takes long."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index == HUGE:
            time.sleep(SLEEP_S)
        time.sleep(0.001)
        return {"value": torch.tensor(float(index))}


def image(number, is_huge):
    return jpeg(1, 2500, 2500) if is_huge else jpeg(number, 16, 16)


def write_images(folder, huge=HUGE):
    """Write forty image files, of which one is huge, and return their folder."""
    (folder / "a").mkdir(parents=True)
    for number in range(40):
        (folder / "a" / f"{number:05d}.jpg").write_bytes(image(number, number == huge))
    return str(folder)


def read_all(source, make_loader=LOADERS["plain"], num_epochs=1):
    """Read all batches through a loader. Return its block about slow records."""
    waits = Waits(source.slow_batches)
    context = LoaderContext(source, torch.device("cpu"), lambda b, _: b, HostClock(), waits)
    loader = make_loader(context)
    try:
        for epoch in range(num_epochs):
            for _ in loader.epoch(epoch):
                pass
        return slow_block(source.slow_records(), waits)
    finally:
        loader.close()


def resized(num, kind, **options):
    return make_context(8, num, kind, Resize([16, 16], crop=False, antialias=True), **options)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images") / "set")


@pytest.mark.parametrize(("num", "kind"), KINDS)
def test_a_huge_image_among_small_ones_is_named(images, num, kind):
    block = read_all(folder_source(images, context=resized(num, kind)), num_epochs=2)
    slowest = block["records"][0]
    assert slowest["number"] == HUGE
    assert slowest["name"] == os.path.join(images, "a", "00004.jpg")
    assert slowest["size_bytes"] == os.path.getsize(slowest["name"])
    assert slowest["num_reads"] == 2
    assert slowest["mean_s"] > 3 * block["usual_s"]
    assert block["num_records"] == 80


@pytest.mark.parametrize(
    ("loader", "num", "kind"),
    [("plain", 0, "thread"), ("prefetch", 0, "thread"), ("stream", 2, "process")],
)
def test_the_waiting_falls_on_the_batch_with_the_slow_item(loader, num, kind):
    source = dataset.dataset_source(Sleepy(), context=make_context(5, num, kind))
    # twice: in the first epoch, a process may sleep while the next one is started
    block = read_all(source, LOADERS[loader], num_epochs=2)
    assert block["records"][0]["number"] == HUGE
    assert block["records"][0]["name"] == "record 4 of tests.data.test_source.Sleepy"
    assert block["records"][0]["mean_s"] >= SLEEP_S
    assert block["slow_wait_s"] > SLEEP_S / 2
    assert 0 < block["saved_s"] <= block["slow_wait_s"]


def test_a_record_is_slow_beside_what_is_usual_but_neither_the_first_nor_a_quick_one():
    usual = Usual()
    reads = usual.slow(torch.arange(4), [9.0, 0.01, 0.01, 0.5], lambda _: 1)
    assert [read.number for read in reads] == [3]
    assert usual.slow(torch.arange(10), [0.01] * 10, lambda _: 1) == []
    reads = usual.slow(torch.arange(10), [0.01] * 9 + [0.5], lambda place: place)
    assert reads == [SlowRead(9, 0.5, 9)]
    usual = Usual()
    assert usual.slow(torch.arange(100), [1e-6] * 99 + [LEAST_S / 2], lambda _: 1) == []


def test_the_ledger_keeps_the_slowest_in_fixed_memory():
    ledger = Ledger()
    assert ledger.report(1.0, str) is None
    ledger.add(SlowRead(index, 0.1 + index / 1e4, 1) for index in range(1000))
    ledger.add([SlowRead(1000, 0.05, 1)])  # too quick to displace another
    report = ledger.report(500.0, str)
    assert [record.number for record in report.records] == list(range(999, 999 - MOST_SHOWN, -1))
    assert report.numbers == list(range(1000 - MOST_KEPT, 1000))
    assert report.num_slow == 1001


BATCH = 16
LOOK_S = 0.25


class Items:
    """A Dataset whose items take a time that a file tells: any process sees a change."""

    def __init__(self, file, count=400):
        self.file = file
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(float(self.file.read_text()))
        return {"value": torch.tensor(float(index))}


def set_pace(file, item_s):
    new = file.with_suffix(".new")
    new.write_text(str(item_s))
    new.rename(file)


class Wanted:
    """Takes the place of the tuner's decisions: another plan at every look."""

    def __init__(self, seed, plan):
        self.random = random.Random(seed)
        self.plan = plan

    def observe(self, seen):
        depth = self.random.randint(1, 5) if self.plan.depth else 0
        plan = tuner.ReadPlan(self.random.randint(1, 4), self.random.randint(1, 4), depth)
        if plan == self.plan:
            return None
        self.plan = plan
        return tuner.Decision(plan, "because a test wants it")


@pytest.fixture
def often(monkeypatch):
    """Let the tuning look after every batch."""
    monkeypatch.setattr(data_source, "LOOK_S", 0.0)
    monkeypatch.setattr(data_source, "LEAST_BATCHES", 1)


def loader_over(source, make_loader, say=str):
    """Return a loader, and what tunes it."""
    waits = Waits(source.slow_batches)
    context = LoaderContext(source, torch.device("cpu"), lambda b, _: b, HostClock(), waits)
    loader = make_loader(context)
    return loader, LiveTuning(source, loader, waits, 2, say)


def batches(source, make_loader, tuned, start=0):
    """Return all batches of two epochs, and the number of changes."""
    loader, tuning = loader_over(source, make_loader)
    tuning._tuner = Wanted(3, tuning._tuner.plan)
    if not tuned:
        tuning._waits.call(lambda now: float("inf"))
    with closing(loader):
        read = [micro.batch for micro in loader.epoch(0, start)]
        read += [micro.batch for micro in loader.epoch(1)]
    return read, len(tuning.decisions)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(str(tmp_path_factory.mktemp("store") / "a.h5"), make_records(90))


@pytest.mark.parametrize(
    ("loader", "kind", "start"),
    [("plain", "thread", 0), ("prefetch", "process", 7), ("stream", "thread", 7)],
)
def test_whatever_is_changed_the_batches_are_the_same(store, often, loader, kind, start):
    def opened(num):
        transform = RandomCrop([3, 3], flip=0.5, flip_vertical=0.5)
        return hdf5.hdf5_source(store, "none", context=make_context(4, num, kind, transform))

    plain, _ = batches(opened(0), LOADERS["plain"], tuned=False, start=start)
    tuned, num_changes = batches(opened(2), LOADERS[loader], tuned=True, start=start)
    assert num_changes > 3
    assert len(plain) == len(tuned)
    for batch, other in zip(plain, tuned, strict=True):
        assert batch.keys() == other.keys()
        assert all(torch.equal(batch[name], other[name]) for name in batch)


def test_it_adds_workers_while_items_are_slow(tmp_path, monkeypatch):
    monkeypatch.setattr(data_source, "LOOK_S", LOOK_S)
    file = tmp_path / "pace"
    set_pace(file, 0.0)
    said = []
    source = dataset.dataset_source(Items(file), context=make_context(BATCH, 2, "process"))
    loader, tuning = loader_over(source, LOADERS["prefetch"], said.append)
    with closing(loader):
        trained_until(loader, lambda: not tuning.decisions, 3 * LOOK_S)
        set_pace(file, 0.02)
        trained_until(loader, lambda: tuning.plan["num_workers"] > 2, 30.0)
    assert tuning.plan["num_workers"] > 2
    assert said[0].startswith("note: workers 2 -> ")
    assert [f"note: {decision['text']}" for decision in tuning.decisions] == said
    json.dumps(tuning.summary())


def trained_until(loader, is_done, limit_s):
    """Take batches, each with a step, until something is so, or the time is over."""
    end = time.monotonic() + limit_s
    epoch = 0
    while time.monotonic() < end:
        for _ in loader.epoch(epoch):
            time.sleep(0.02)
            if is_done() or time.monotonic() > end:
                return
        epoch += 1


def test_data_without_workers_or_on_the_device_is_refused(store):
    context = make_context()
    for source in (
        synthetic.SyntheticSource("", [3, 4, 4], 3, 8, context=context),
        hdf5.hdf5_source(store, "device", context=context),
    ):
        with pytest.raises(ConfigError, match=r"C174.*workers\.num = auto.*no workers"):
            LiveTuning(source, object(), Waits(), 2, print)
        source.close()
