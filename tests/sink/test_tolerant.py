import errno
import os
import time

import pytest

from framework.contracts.training import Report, RunContext
from framework.errors import DataError, ResourceError
from framework.sink.tensorboard import TensorBoardSink
from framework.sink.tolerant import TolerantSink
from tests.fakes import FakeSink
from tests.small_disk import small_disk


def report(step, split="train"):
    return Report(split, step, 1, {"loss": 0.5}, 100.0)


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
