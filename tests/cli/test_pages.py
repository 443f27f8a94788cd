"""Colors as people with the three kinds of color blindness see them.

The differences between colors are those of CIE 1976 L*a*b*.

Source:
    The matrices: G. Machado, M. Oliveira and L. Fernandes, A physiologically-based model for
    simulation of color vision deficiency, 2009, severity 1.0.
"""

from itertools import combinations

import numpy as np
import pytest

from framework.cli.pages import COLORS, OF_RUN, OF_SPAN, rendered

SEEN = {
    "all colors": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(color: str) -> np.ndarray:
    rgb = np.array([int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(color: str, seen: np.ndarray) -> np.ndarray:
    xyz = TO_XYZ @ np.clip(seen @ linear(color), 0, 1) / (TO_XYZ @ np.ones(3))
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colors as WCAG 2 defines it."""
    low, high = sorted(float(TO_XYZ[1] @ linear(color)) for color in (first, second))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("page", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("names", [{*OF_SPAN.values()}, OF_RUN], ids=["spans", "runs"])
def test_colors_are_distinguished_with_any_color_vision(names, seen, page):
    colors = [lab(COLORS[name][page], np.array(SEEN[seen])) for name in names]
    pairs = combinations(colors, 2)
    assert min(float(np.linalg.norm(first - second)) for first, second in pairs) > 11


@pytest.mark.parametrize("page", [0, 1], ids=["light", "dark"])
def test_text_and_lines_stand_out_from_the_page(page):
    paper = COLORS["paper"][page]
    assert contrast(COLORS["ink"][page], paper) > 12
    assert contrast(COLORS["muted"][page], paper) > 4.5
    assert contrast(COLORS["blue"][page], paper) > 4.5  # links
    assert all(contrast(COLORS[name][page], paper) > 2.2 for name in OF_RUN)


def test_values_are_escaped_and_the_style_is_inside(tmp_path):
    template = tmp_path / "page.html"
    template.write_text("<style>{{ style }}</style><p>{{ name }}</p>")
    html = rendered(template, name="<script>")
    assert "<p>&lt;script&gt;</p>" in html
    assert "font-family" in html
