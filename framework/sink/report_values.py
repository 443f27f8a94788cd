"""The numbers of a report by the names of charts, for every sink that draws curves."""

from framework.contracts.training import Report


def learned_values(report: Report) -> dict[str, float]:
    """Return the means and the learning rate of a report, which a repeated run logs again.

    Names end in the split, as in ``loss/train`` and ``loss/val``, so that splits share a chart.
    """
    values = {f"{name}/{report.split}": value for name, value in report.means.items()}
    if report.split == "train":
        values["lr/train"] = report.learning_rate or 0.0
    return values


def measured_values(report: Report) -> dict[str, float]:
    """Return the speed of a report, and for training its spans, stages and usage."""
    values = {f"records_per_s/{report.split}": report.records_per_s}
    if report.split != "train":
        return values
    for name, span in report.spans.items():
        values[f"span/{name}_s"] = span.mean_s
        values[f"span_p50/{name}_s"] = span.p50_s
        values[f"span_p90/{name}_s"] = span.p90_s
    values |= {f"stage/{name}_s": seconds for name, seconds in report.stages_s.items()}
    values |= {f"share/{name}": share for name, share in report.content.items()}
    values |= {f"usage/{name}": value for name, value in report.usage.items()}
    if report.ranks is not None:
        for name, span in report.ranks.spans.items():
            values[f"span_ranks/{name}_min_s"] = span.min_s
            values[f"span_ranks/{name}_max_s"] = span.max_s
    optional = {
        "stage/ready": report.ready,
        "usage/skipped_steps": report.skipped or None,
        "time_left/epoch_records": report.epoch_left,
        "time_left/run_s": report.left_s,
    }
    return values | {name: value for name, value in optional.items() if value is not None}
