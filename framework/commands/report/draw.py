"""All charts of a report."""

from collections.abc import Sequence

from framework.commands.report.bars import spans_chart, times_chart
from framework.commands.report.chart import Chart, styled
from framework.commands.report.compare_runs import Relative
from framework.commands.report.curves import curve_charts
from framework.commands.report.recorded_run import RecordedRun


def charts(
    runs: Sequence[RecordedRun], names: Sequence[str], compared: Relative, png: bool
) -> list[Chart]:
    """Draw the charts that have something to show, with ``png`` as pictures too."""
    with styled():
        bars = (times_chart(runs, names, compared, png), spans_chart(runs, names, png))
        return [*(chart for chart in bars if chart is not None), *curve_charts(runs, names, png)]
