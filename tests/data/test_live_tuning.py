import json
import random
import time
from contextlib import closing

import pytest
import torch

from framework.contracts.loader import LoaderContext
from framework.contracts.waits import Waits
from framework.data import source as data_source
from framework.data.dataset import dataset_source
from framework.data.hdf5 import hdf5_source
from framework.data.source import LiveTuning
from framework.data.synthetic import SyntheticSource
from framework.errors import ConfigError
from framework.loader.plain import PlainLoader
from framework.loader.prefetch import PrefetchLoader
from framework.loader.stream import StreamLoader
from framework.loader.tuner import Decision, ReadPlan
from framework.measure.clock import HostClock
from framework.transform.random_crop import RandomCrop
from tests.conftest import make_context, make_records, write_store

LOADERS = {
    "plain": lambda context: PlainLoader(True, context=context),
    "prefetch": lambda context: PrefetchLoader(2, True, context=context),
    "stream": lambda context: StreamLoader(2, 2, context=context),
}
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
        plan = ReadPlan(self.random.randint(1, 4), self.random.randint(1, 4), depth)
        if plan == self.plan:
            return None
        self.plan = plan
        return Decision(plan, "because a test wants it")


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
        return hdf5_source(store, "none", context=make_context(4, num, kind, transform))

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
    source = dataset_source(Items(file), context=make_context(BATCH, 2, "process"))
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
        SyntheticSource("", [3, 4, 4], 3, 8, context=context),
        hdf5_source(store, "device", context=context),
    ):
        with pytest.raises(ConfigError, match=r"C174.*workers\.num = auto.*no workers"):
            LiveTuning(source, object(), Waits(), 2, print)
        source.close()
