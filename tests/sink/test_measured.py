import framework.sink.measured
from framework.contracts.loader import LoaderStats
from framework.contracts.training import Report
from framework.sink.measured import MeasuredSink
from tests.fakes import FakeSink


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
    monkeypatch.setattr(framework.sink.measured.time, "monotonic", lambda: now[0])
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
