import cv2
import numpy as np

from framework.cli.palette import COLORS
from framework.commands.report.chart import PNG_DPI, inlined
from tests.commands.report.runs import drawn, make_sweep

FILE = """<?xml version="1.0"?>
<!DOCTYPE svg PUBLIC "x" "http://www.w3.org/x.dtd">
<svg xmlns:xlink="http://www.w3.org/1999/xlink" width="9pt" viewBox="0 0 420 300" xmlns="http://www.w3.org/2000/svg">
<metadata><a href="http://x"/></metadata>
<defs>
  <style type="text/css">*{stroke: red}</style>
 </defs>
<g id="bar-1"><path d="M 1.23456 7" style="fill: #0072b2"/></g>
<use xlink:href="#m1"/><text>fill: #0072b2 1.23456 &lt;script&gt;</text></svg>"""


def test_pictures_are_pictures(tmp_path):
    for chart in drawn(make_sweep(tmp_path, 1), png=True).values():
        pixels = cv2.imdecode(np.frombuffer(chart.png, np.uint8), cv2.IMREAD_COLOR)
        assert pixels.shape[1] == int(420 / 72 * PNG_DPI)
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20


def test_colors_follow_the_page_and_text_stays_as_it_is():
    text = inlined(FILE, "spans", "a title", {})
    assert 'style="fill: var(--blue)"' in text
    assert f"<text>fill: {COLORS['blue'][0]} 1.23456 &lt;script&gt;</text>" in text
