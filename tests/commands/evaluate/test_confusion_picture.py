"""The picture of the confusion."""

from pathlib import Path

import cv2
import pytest

from framework.commands.evaluate.confusion_picture import write_confusion


@pytest.mark.parametrize("number", [1, 3, 60])
def test_a_picture_is_made_of_any_number_of_classes(number):
    counts = [[int(row == column) for column in range(number)] for row in range(number)]
    write_confusion(Path("c.png"), counts, [f"a long name $x$ {n}" for n in range(number)])
    assert cv2.imread("c.png").shape[0] > 300
