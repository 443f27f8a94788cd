from dataclasses import replace

from framework.contracts.rank_spans import RankReport, RankSpan
from framework.contracts.training import Report
from framework.sink.report_values import learned_values, measured_values
from tests.fakes import span


def report(split="train"):
    spans = {"wait": span(0.5, 0.25)}
    return Report(split, 1, 1, {"loss": 1.0}, 9.0, spans, 0.1, skipped=2, usage={"cpu_cores": 1.5})


def test_what_is_learned_are_means_and_rate_of_the_split():
    assert learned_values(report()) == {"loss/train": 1.0, "lr/train": 0.1}
    assert learned_values(report("val.clean")) == {"loss/val.clean": 1.0}


def test_what_is_measured_belongs_to_training():
    values = measured_values(report())
    assert values["span/wait_s"] == report().spans["wait"].mean_s
    assert values["usage/skipped_steps"] == 2
    assert measured_values(report("val")) == {"records_per_s/val": 9.0}


def test_the_quickest_and_the_slowest_rank_have_curves():
    ranks = RankReport(4, {"wait": RankSpan(0.1, 0.2, 0.3, 2)})
    values = measured_values(replace(report(), ranks=ranks))
    assert values["span_ranks/wait_min_s"] == 0.1
    assert values["span_ranks/wait_max_s"] == 0.3
