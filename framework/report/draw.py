"""All charts of a report."""

from collections.abc import Sequence

from framework.report.bars import spans_chart, times_chart
from framework.report.chart import Chart, styled
from framework.report.compare import Relative
from framework.report.curves import curve_charts
from framework.report.run import Run


def charts(runs: Sequence[Run], names: Sequence[str], compared: Relative, png: bool) -> list[Chart]:
    """Those there is something to draw in: relative times, spans, and each metric over steps and over seconds. ``png``: as pictures too."""
    with styled():
        bars = (times_chart(runs, names, compared, png), spans_chart(runs, names, png))
        return [*(chart for chart in bars if chart is not None), *curve_charts(runs, names, png)]
