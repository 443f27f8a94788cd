"""Reports, as the sinks get them."""

import random

import torch

from framework.train.metrics import Progress
from framework.train.reporter import Reporter, SplitResults
from tests.fakes import CPU, FakeSink

IDENTITY = {"records": 20, "batch_size": 8}
RESULTS = SplitResults("val.clean", {"loss": 0.5}, {"x": torch.ones(2, 2)}, 10.0, {})


def reported(progress, identity=IDENTITY):
    sink, reporter = FakeSink(), Reporter(identity, CPU)
    reporter.begin([sink], step=2)
    assert reporter.write(RESULTS, progress, last_step=9, rate=0.1) is sink.reports[0]
    return sink.reports[0]


def test_a_report_says_how_far_the_run_is():
    report = reported(Progress(step=5, epoch=1, epoch_step=2, scheduled=4))
    assert (report.step, report.epoch, report.skipped) == (5, 2, 1)
    assert (report.split, report.means, report.learning_rate) == ("val.clean", {"loss": 0.5}, 0.1)
    assert report.arrays["x"].tolist() == [[1, 1], [1, 1]]


def test_the_records_that_are_left_of_an_epoch_are_counted():
    assert reported(Progress(epoch_step=2)).epoch_left == 4
    assert reported(Progress(epoch_step=3)).epoch_left == 0
    assert reported(Progress(epoch=1)).epoch_left == 0
    assert reported(Progress(epoch_step=1), {**IDENTITY, "steps": 4}).epoch_left == 15


def test_what_a_sink_draws_does_not_move_the_run_s_numbers():
    class Draws(FakeSink):
        def write(self, report):
            self.drawn = torch.rand(3), random.random()

    torch.manual_seed(3)
    expected = torch.rand(2).tolist()
    torch.manual_seed(3)
    reporter = Reporter(IDENTITY, CPU)
    reporter.begin([Draws()], 0)
    reporter.write(RESULTS, Progress(), 1, 0.1)
    assert torch.rand(2).tolist() == expected
