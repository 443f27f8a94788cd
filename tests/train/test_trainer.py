"""The Trainer with fake parts around real torch models: what it learns, and what is due when."""

import time
import warnings

import pytest
import torch
from torch import nn

from framework.contracts.data import MicroBatch
from framework.contracts.loader import LoaderContext
from framework.contracts.training import Report
from framework.data.hdf5 import hdf5_source
from framework.errors import ConfigError, DataError
from framework.loader.prefetch import PrefetchLoader
from framework.measure.clock import HostClock, make_clock
from framework.train.metrics import Progress
from tests import fakes
from tests.conftest import make_context, make_records, write_store
from tests.train.states import means, weights


def trained(data, batch_size, **parts):
    """Return a Trainer that has trained, and the sink that has its reports."""
    sink = fakes.FakeSink()
    trainer = fakes.make_trainer(data, batch_size, sinks=[sink], **parts)
    trainer.fit()
    return trainer, sink


@pytest.mark.parametrize(
    ("num_records", "batch_size", "accumulate", "clip_norm"),
    [
        pytest.param(16, 16, 5, None, id="uneven passes"),
        pytest.param(19, 8, 4, None, id="a short last batch"),
        pytest.param(16, 16, 4, 0.01, id="clipped gradients"),
    ],
)
def test_accumulated_passes_learn_and_report_what_one_batch_does(
    num_records, batch_size, accumulate, clip_norm
):
    plan = {"epochs": 2, "report_every": 1, "clip_norm": clip_norm}
    whole, expected = trained(fakes.make_data(num_records), batch_size, **plan)
    order = {"accumulate": accumulate}
    cut, sink = trained(fakes.make_data(num_records), batch_size, order=order, **plan)
    assert cut.progress.step == whole.progress.step
    torch.testing.assert_close(weights(cut), weights(whole), rtol=1e-12, atol=1e-14)
    assert means(sink) == [pytest.approx(report, rel=1e-12) for report in means(expected)]


def test_batch_norm_of_a_single_record_names_drop_last():
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    with pytest.raises(ConfigError, match=r"C396.*step 3: batch norm.* 1 record; set drop_last="):
        fakes.make_trainer(fakes.make_data(9), 4, model=net).fit()


def test_a_label_of_no_class_names_its_record_and_the_step():
    data = {**fakes.make_data(9), "index": torch.arange(9)}
    data["y"][6] = 7
    with pytest.raises(DataError, match=r"D195.*step 2, record 6: has 7 as y"):
        fakes.make_trainer(data, 4).fit()


@pytest.mark.parametrize(("validate_every", "validated"), [(None, [5, 10]), (4, [4, 8, 10])])
def test_reports_and_validations_come_when_they_are_due_and_at_ends(validate_every, validated):
    plan = {"epochs": 2, "report_every": 2, "validate_every": validate_every}
    _, sink = trained(fakes.make_data(20), 4, val=fakes.FakeLoader(fakes.make_data(6), 4), **plan)
    steps = [(report.step, report.epoch) for report in sink.of("train")]
    assert steps == [(2, 1), (4, 1), (5, 1), (6, 2), (8, 2), (10, 2)]
    assert [report.step for report in sink.of("val")] == validated


@pytest.mark.parametrize(("max_steps", "steps"), [(1, 1), (5, 5), (6, 6), (99, 10)])
def test_a_run_ends_after_max_steps_or_its_epochs(max_steps, steps):
    trainer, sink = trained(fakes.make_data(20), 4, epochs=2, max_steps=max_steps)
    assert trainer.progress.step == trainer.total_steps == sink.reports[-1].step == steps
    assert not trainer.stopped


def test_epochs_yields_the_newest_validation_after_each_epoch_until_its_caller_stops():
    trainer = fakes.make_trainer(
        fakes.make_data(20), 4, epochs=3, val=fakes.FakeLoader(fakes.make_data(6), 4)
    )
    steps = []
    for validation in trainer.epochs():
        steps.append(trainer.progress.step)
        assert validation == trainer.val_means
        if len(steps) == 2:
            break
    assert steps == [5, 10]
    assert trainer.progress.step == 10


class ExpectingLoader(fakes.FakeLoader):
    """A loader that notes what is expected, and after how many batches of ``train``."""

    def __init__(self, *args, train=None):
        super().__init__(*args)
        self.train, self.expected = train or self, []

    def expect(self, epoch, start, steps):
        self.expected.append((self.train.yielded, epoch, start, steps))


def test_the_rest_of_a_run_is_expected_and_nothing_behind_its_end():
    train = ExpectingLoader(fakes.make_data(20), 2)  # ten steps an epoch
    val = ExpectingLoader(fakes.make_data(6), 2, train=train)
    trained(None, 2, train=train, val=val, epochs=3, max_steps=24)
    assert train.expected == [(0, 0, 0, 24), (10, 1, 0, 14), (20, 2, 0, 4), (24, 0, 0, 0)]
    # four steps before each validation; the last one is expected again in the epoch's first step
    assert sorted({after for after, *_, steps in val.expected if steps}) == [6, 16, 20, 21]
    assert {tuple(rest) for _, *rest in val.expected} == {(0, 0, 3), (0, 0, 0)}


class Noting(fakes.MeanValue):
    """An objective that notes the records of each pass in training."""

    def __init__(self):
        self.records = []

    def __call__(self, model, batch):
        if model.training:
            self.records.append(batch["index"].tolist())
        return super().__call__(model, {"value": batch["label"].double()})


def reading(path, training, num_workers):
    """Return a loader over a store whose batches a thread keeps ready."""
    source = hdf5_source(path, context=make_context(num_workers=num_workers, training=training))
    context = LoaderContext(source, fakes.CPU, lambda batch, _: batch, fakes.FakeClock())
    return PrefetchLoader(2, False, context=context)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stopped_run_resumes_with_the_records_that_follow(num_workers):
    path = write_store("x.h5", make_records(12))  # three steps
    records, state = [], None
    for stop in (fakes.stop_after(5), lambda: False):
        train, val = (reading(path, training, num_workers) for training in (True, False))
        noting = Noting()
        trainer = fakes.make_trainer(objective=noting, train=train, val=val, epochs=4, stop=stop)
        if state is not None:
            trainer.load_state_dict(state)
        trainer.fit()
        assert (train._opened, val._opened) == (None, None)
        records += noting.records
        state = trainer.state_dict()
        train.close()
        val.close()
    order = train.context.source.order
    assert records == [share.indices.tolist() for _, share in order.shares_on(0, 0, 12)]


def test_every_epoch_of_the_loader_is_closed():
    trainer, _ = trained(fakes.make_data(20), 4, epochs=3, max_steps=7)
    assert trainer.parts.train.started == [(0, 0), (1, 0)]
    assert trainer.parts.train.closed == 2
    broken = fakes.make_trainer(stop=lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        broken.fit()
    assert broken.parts.train.closed == 1


def test_a_stop_saves_the_state_and_leaves_its_reports_to_the_resumed_run():
    checkpoints = fakes.FakeCheckpoints()
    parts = {"checkpoints": checkpoints, "stop": fakes.stop_after(3)}
    trainer, sink = trained(fakes.make_data(20), 4, epochs=2, **parts)
    assert (trainer.stopped, trainer.progress.step, trainer.progress.epoch_step) == (True, 3, 3)
    assert [state["progress"]["step"] for state, _, _ in checkpoints.saved] == [3]
    assert (sink.reports, sink.flushed, checkpoints.finals) == ([], [0], [True])
    assert trainer.pace.num_records == 12


@pytest.mark.parametrize(
    ("plan", "saved"),
    [
        pytest.param({}, [(5, True), (10, True)], id="at the end of every epoch"),
        pytest.param(
            {"save_every": 4}, [(4, False), (5, True), (8, False), (10, True)], id="steps"
        ),
        pytest.param({"save_epochs": 2}, [(10, True)], id="every other epoch"),
        pytest.param({"save_epochs": None}, [(10, True)], id="at the end only"),
    ],
)
def test_states_are_saved_when_they_are_due_and_weights_at_the_end_of_an_epoch(plan, saved):
    checkpoints = fakes.FakeCheckpoints()
    plan = {"epochs": 2, "validate_every": 100, **plan}
    trained(fakes.make_data(20), 4, checkpoints=checkpoints, **plan)
    steps = [(state["progress"]["step"], kept is not None) for state, kept, _ in checkpoints.saved]
    assert steps == saved


def test_the_state_is_saved_when_the_time_since_the_last_save_is_over():
    checkpoints = fakes.FakeCheckpoints(late=[False, True, False, False, False])
    trained(fakes.make_data(20), 4, checkpoints=checkpoints)
    assert [state["progress"]["step"] for state, _, _ in checkpoints.saved] == [2, 5]
    assert checkpoints.finals == [False, True]


def test_spans_are_seconds_per_step_however_many_passes_a_step_has():
    clock = fakes.FakeClock()
    train = fakes.FakeLoader(fakes.make_data(20), 4, clock, accumulate=2)
    trainer, sink = trained(None, 4, train=train, clock=clock, report_every=2)
    first, second, _ = [report.spans for report in sink.reports]
    known = dict.fromkeys(("wait", "forward", "backward"), fakes.span(2.0, 2.0))
    known["optimizer"] = fakes.span(1.0, 1.0)
    assert first == {**known, "report": fakes.span(1.0)}
    assert second == {**known, "report": fakes.span(1.0, 1.0)}
    passes_s = dict.fromkeys(("wait", "forward", "backward"), 10.0)
    spans_s = {name: own.total_s for name, own in trainer.spans.whole.items()}
    assert spans_s == {**passes_s, "optimizer": 5.0, "report": 5.0}


@pytest.mark.parametrize(
    ("identity", "epoch_step", "left"), [({}, 2, 4), ({}, 3, 0), ({}, 0, 0), ({"steps": 4}, 1, 15)]
)
def test_a_report_tells_how_much_is_left(identity, epoch_step, left, monkeypatch):
    now = [7.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    own = fakes.make_trainer()
    own.parts.train.identity = {"records": 20, "batch_size": 8, **identity}
    own.progress.step = 3
    own._began = now[0], own.progress.step
    now[0] += 6.0
    own.progress = Progress(step=5, epoch=1, epoch_step=epoch_step, scheduled=4)
    own._last_step = 9
    report = own._write(Report("train", 0, 0, {"loss": 0.5}, 10.0))
    assert (report.epoch_left, report.left_s) == (left, 12.0)
    assert (report.step, report.skipped, report.learning_rate) == (5, 1, 0.1)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_no_number_is_read_before_the_first_report(accumulate):
    meta = torch.device("meta")  # whose numbers cannot be read
    train = fakes.FakeLoader(fakes.make_data(40), 4, device=meta, accumulate=accumulate)
    parts = {"model": fakes.make_model().to(meta), "train": train, "clip_norm": 0.1, "ema": 0.9}
    trainer = fakes.make_trainer(report_every=7, clock=HostClock(), **parts)
    with pytest.raises(NotImplementedError, match="meta"):
        trainer.fit()
    assert trainer.progress.step == 7


def cuda_trainer(report_every):
    """Return a Trainer of 12 steps whose data lies on the GPU."""
    cuda = torch.device("cuda")
    clock = make_clock(cuda)
    data = {name: values.to(cuda) for name, values in fakes.make_data(48).items()}
    train = fakes.FakeLoader(data, 4, clock, device=cuda)
    train.epoch = lambda epoch, start=0: (MicroBatch(data, 1.0, last=True) for _ in range(12))
    parts = {"train": train, "model": fakes.make_model().to(cuda), "clock": clock, "ema": 0.9}
    return fakes.make_trainer(report_every=report_every, clip_norm=0.1, **parts)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
def test_cuda_is_synchronized_in_reports_only():
    def num_synchronizations(report_every):
        trainer = cuda_trainer(report_every)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
                trainer.fit()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return len(caught)

    num_synchronizations(12)  # the first run loads libraries
    one_report = num_synchronizations(12)
    assert [num_synchronizations(6), num_synchronizations(4)] == [2 * one_report, 3 * one_report]
