import errno
import os
import time

import pytest

from framework.contracts.loader import LoaderStats
from framework.contracts.training import Report, RunContext
from framework.errors import DataError, ResourceError
from framework.sink import base
from framework.sink.base import MeasuredSink, TolerantSink
from framework.sink.tensorboard import TensorBoardSink
from tests.fakes import FakeSink
from tests.small_disk import small_disk


def report(step, split="train"):
    return Report(split, step, 1, {"loss": 0.5}, 100.0)


def measured(sinks, *stats, usage=dict, start_step=0):
    """Return a sink whose loader gives these ``stats``, one after the other."""
    said = iter(stats)
    return MeasuredSink(sinks, lambda: next(said), usage, start_step)


def test_a_training_report_says_what_reading_took_per_step():
    inner = FakeSink()
    sink = measured([inner], LoaderStats({"read": 4.0, "decode": 8.0}, 1.5, 2), start_step=6)
    sink.write(report(10))
    assert inner.reports[0].stages_s == {"read": 1.0, "decode": 2.0}
    assert inner.reports[0].ready == 1.5
    assert (inner.reports[0].step, inner.reports[0].means) == (10, {"loss": 0.5})


def test_stages_are_summed_up_over_the_run():
    sink = measured(
        [], LoaderStats({"read": 4.0}, 1.0, 2), LoaderStats({"read": 1.0, "collate": 2.0}, 2.0, 2)
    )
    sink.write(report(3))
    sink.write(report(4))
    assert sink.stages_s == {"read": 5.0, "collate": 2.0}
    assert (sink.ready, sink.depth) == ((3 * 1.0 + 1 * 2.0) / 4, 2)


def test_a_validation_report_goes_by_as_it_is_and_asks_nobody():
    inner = FakeSink()
    measured([inner], usage=None).write(report(3, "val"))
    assert inner.reports == [report(3, "val")]


def test_usage_of_the_whole_run_is_means_over_time_and_peaks(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(base.time, "monotonic", lambda: now[0])
    said = iter(
        [
            {"cpu_cores": 4.0, "peak_rss_bytes": 7.0},
            {"cpu_cores": 1.0, "peak_rss_bytes": 9.0, "gpu_busy_share": 0.5},
        ]
    )
    sink = measured([], LoaderStats({}, None, 0), usage=lambda: next(said))
    now[0] = 101.0
    sink.write(report(1))
    now[0] = 104.0
    assert sink.usage() == {
        "cpu_cores": (1 * 4.0 + 3 * 1.0) / 4,
        "gpu_busy_share": 0.5,
        "peak_rss_bytes": 9.0,
    }


def test_shares_of_what_batches_held_are_reported_and_summed_up():
    inner = FakeSink()
    stats = [LoaderStats({}, None, 0, {"padding": counts}) for counts in ((1.0, 4.0), (0.0, 6.0))]
    sink = measured([inner], *stats, LoaderStats({}, None, 0, {"padding": (0.0, 0.0)}))
    for step in (1, 2, 3):
        sink.write(report(step))
    assert [made.content for made in inner.reports] == [{"padding": 0.25}, {"padding": 0.0}, {}]
    assert sink.content == {"padding": 0.1}


class Failing(FakeSink):
    """A sink whose every method fails."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def write(self, report=None):
        raise self.error

    flush = close = write


def unwritable():
    error = ResourceError(101, "a.csv", "cannot write", "free space")
    error.__cause__ = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return error


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
        (OSError("gone"), "gone"),
        (unwritable(), "No space left on device"),
    ],
)
def test_a_sink_that_cannot_write_is_said_once(error, why):
    warned = []
    sink = TolerantSink(Failing(error), warned.append)
    sink.write(report(1))
    sink.flush()
    sink.close()
    what = f"Failing cannot write: {why}"
    assert warned == [f"warning: {what}; training continues without it"]


def test_another_error_ends_the_run():
    with pytest.raises(DataError):
        TolerantSink(Failing(DataError(1, "a", "b", "c")), print).write(report(1))


def test_a_sink_that_works_gets_everything():
    inner = FakeSink()
    sink = TolerantSink(inner, print)
    sink.write(report(1))
    sink.flush()
    sink.close()
    assert (inner.reports, inner.flushed, inner.closed) == ([report(1)], [1], True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_tensorboard_may_close_after_a_full_disk(tmp_path):
    warned = []
    sink = TolerantSink(TensorBoardSink(0, run=RunContext(tmp_path, 10, 1)), warned.append)
    (events,) = (tmp_path / "tensorboard").iterdir()
    with small_disk(events.stat().st_size + 5):
        sink.write(report(1))
        end = time.monotonic() + 20.0
        while not warned and time.monotonic() < end:  # until the thread of TensorBoard fails
            sink.flush()
            time.sleep(0.01)
    sink.write(report(2))
    sink.flush()
    sink.close()
    assert warned == [
        "warning: TensorBoardSink cannot write: File too large; training continues without it"
    ]
