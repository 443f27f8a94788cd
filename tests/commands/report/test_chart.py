import cv2
import matplotlib as mpl
import numpy as np

from framework.commands.report.chart import PNG_DPI, fitted
from tests.commands.report.runs import drawn, make_sweep


def test_long_names_lose_their_middle():
    assert fitted("abcdefghij", 10) == "abcdefghij"
    assert fitted("abcdefghijk", 10) == "abcdef…ijk"


def test_pictures_are_pictures(tmp_path):
    for chart in drawn(make_sweep(tmp_path, 1), png=True).values():
        pixels = cv2.imdecode(np.frombuffer(chart.png, np.uint8), cv2.IMREAD_COLOR)
        assert pixels.shape[1] == int(420 / 72 * PNG_DPI)
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20


def test_the_user_s_own_style_changes_nothing_and_is_not_changed(tmp_path, monkeypatch):
    paths = make_sweep(tmp_path)
    before = drawn(paths)
    monkeypatch.setitem(mpl.rcParams, "text.usetex", True)
    monkeypatch.setitem(mpl.rcParams, "lines.linewidth", 9.0)
    assert drawn(paths) == before
    assert mpl.rcParams["lines.linewidth"] == 9.0
