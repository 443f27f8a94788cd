from contextlib import closing
from itertools import chain

import pytest
import torch

from framework.cli import arguments, hydra_app
from framework.trials.probe import Counted, Probe, Rate, Windows
from tests.conftest import make_records, write_store

NOBODY = arguments.Grant(frozenset(), "")
TINY = ["data=synthetic", "batch_size=8"]


def measured(config, allowed, measure) -> Rate:
    with closing(Probe(config, allowed)) as probe:
        return measure(probe)


@pytest.fixture(scope="module")
def config():
    return hydra_app.composed(TINY, NOBODY)[0]


def test_the_spans_of_whole_steps_are_the_trainers(config):
    rate = measured(config, (), lambda probe: probe.train(0.2, burn_in_s=0.05))
    assert {"wait", "copy", "forward", "backward", "optimizer", "report"} <= rate.spans_s.keys()


def test_each_measurement_reads_other_records(epochs_read):
    """What was just read is in memory, although the disk may be slow."""
    store = write_store("a.h5", make_records(60))
    words = [f"data.train={store}", "batch_size=60", "prepare=null"]
    with closing(Probe(hydra_app.composed(words, NOBODY)[0], (), epoch=7)) as probe:
        for measure in (probe.host, probe.loader, probe.train):
            measure(0.01, 0.0)
    assert min(epochs_read) == 7
    assert epochs_read == sorted(set(epochs_read))


def test_processes_that_never_start_end_the_waiting(monkeypatch):
    monkeypatch.setattr("framework.trials.probe.LONGEST_START_S", -1.0)
    windows = Windows(1000.0, 0.0, torch.device("cpu"), num_windows=1, num_starting=1000)
    windows.length_s = 0.0
    assert [windows.count(1) for _ in range(3)] == [False, False, True]


def test_processes_start_once_for_all_measurements():
    store = write_store("a.h5", make_records(60))
    words = [f"data.train={store}", "batch_size=6", "prepare=null"]
    workers = ["workers.num=2", "workers.kind=process"]
    with closing(Probe(hydra_app.composed([*words, *workers], NOBODY)[0], ())) as probe:
        assert probe.assembly.train_source.workers.num_to_start == 2
        assert probe.train(0.1, 0.0).records_per_s > 0
        assert probe.assembly.train_source.workers.num_to_start == 0


def test_batches_that_were_ready_do_not_count():
    windows = Windows(1000.0, 0.0, torch.device("cpu"), num_windows=2, ahead=3)
    windows.length_s = 0.0
    # twice three, the last of them the burn-in's end, and two windows
    assert [windows.count(1) for _ in range(8)] == [False] * 7 + [True]


def test_batches_prepared_before_the_windows_do_not_count():
    """Six steps of 10 records, three of which nobody made meanwhile."""
    ready = iter([5, 2])
    windows = Windows(0.0, 0.0, torch.device("cpu"), num_windows=6, ready=lambda: next(ready))
    while not windows.count(10):
        pass
    rate = windows.rate({})
    assert rate.windows[0] < windows.rates[0]
    lost = [before - after for before, after in zip(windows.rates, rate.windows, strict=True)]
    assert lost == pytest.approx([30 / (windows._start - windows._warm_at)] * 6)


def test_ahead_is_the_depth_of_the_loader(config):
    words = [([], 0), (["loader=prefetch", "loader.depth=5"], 5)]
    for more, ahead in words:
        probe = Probe(hydra_app.composed(["data=synthetic", "loader=plain", *more], NOBODY)[0], ())
        assert probe.ahead == ahead
        probe.close()


@pytest.mark.parametrize(("period", "steps"), [(1, 1), (2, 2), (5, 5), (1000, 1)])
def test_a_window_has_whole_short_epochs(period, steps):
    """Of no time: it would end with its first step. Of a long epoch a part has to do."""
    windows = Windows(0.0, 0.0, torch.device("cpu"), num_windows=1, period=period)
    windows.count(1)  # the burn-in's end
    counted = (period - 1) // 2 if period < 1000 else 0  # when the time was over
    windows._num_steps = counted
    is_full = False
    while not is_full:
        counted += 1
        is_full = windows.count(1)
    assert counted == steps


def test_a_part_of_the_batch_can_be_computed(config):
    probe = Probe(config, (), num_windows=2)
    rate = probe.compute(0.05, 0.0, num_records=3)
    assert len(rate.windows) == 2
    assert len(probe.batch["index"]) == 8
    probe.close()


def test_a_batch_of_more_records_repeats_them(config):
    probe = Probe(config, (), num_windows=1)
    sizes, steps = [], probe.train

    def sized(seconds, burn_in_s, batch):
        sizes.append(len(batch["index"]))
        return steps(seconds, burn_in_s, batch)

    probe.train = sized
    assert probe.compute(0.05, 0.0, num_records=20).records_per_s > 0
    assert sizes == [20]
    probe.close()


@pytest.mark.parametrize(("batch_size", "seconds"), [(8, 0.08), (1437, 1e-4)])
def test_a_visit_of_slow_steps_has_a_rate(config, batch_size, seconds):
    sized = {**config, "batch_size": batch_size}
    rate = measured(sized, (), lambda probe: probe.visit(seconds, 0.15))
    assert rate.records_per_s > 0
    assert rate.step_s > 0


def test_records_are_counted_with_short_last_batches():
    store = write_store("a.h5", make_records(10))
    words = [f"data.train={store}", "batch_size=4", "prepare=null", "loader=plain"]
    probe = Probe(hydra_app.composed(words, NOBODY)[0], ())
    counted = Counted(probe.assembly)
    counts: list[int] = []
    for _ in chain(counted.epoch(3), counted.epoch(4)):
        counts.append(counted.num_records)
        counted.num_records = 0
    probe.close()
    assert counts == [4, 4, 2, 4, 4, 2]
