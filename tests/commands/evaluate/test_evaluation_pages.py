"""The picture of the confusion, and the page of the worst records."""

import re
from pathlib import Path

import cv2
import pytest

from framework.commands.evaluate.evaluation_pages import worst_page, write_confusion


def test_foreign_texts_are_escaped():
    facts = [("key", "<script>alert(1)</script>")]
    record = {"pictures": [("image", "data:image/png;base64,AA==")], "facts": facts}
    shown = {"name": "val", "data": "v.h5", "records": 3, "means": [], "worst": [record]}
    page = worst_page([shown], "run", "best")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert re.search(r'<img src="data:image/png', page)


@pytest.mark.parametrize("number", [1, 3, 60])
def test_a_picture_is_made_of_any_number_of_classes(number):
    counts = [[int(row == column) for column in range(number)] for row in range(number)]
    write_confusion(Path("c.png"), counts, [f"a long name $x$ {n}" for n in range(number)])
    assert cv2.imread("c.png").shape[0] > 300
