"""The page of the worst records."""

import base64
import re

import cv2
import numpy as np

from framework.commands.evaluate.worst_page import (
    Picture,
    ShownRecord,
    ShownSet,
    data_uri,
    worst_page,
)


def test_a_picture_is_kept_without_loss_if_it_is_small():
    pixels = np.arange(48, dtype=np.uint8).reshape(3, 4, 4)
    kind, data = data_uri(pixels).split(",")
    decoded = cv2.imdecode(np.frombuffer(base64.b64decode(data), np.uint8), cv2.IMREAD_COLOR)
    assert kind == "data:image/png;base64"
    assert np.array_equal(decoded[:, :, ::-1].transpose(2, 0, 1), pixels)
    assert data_uri(np.zeros((1, 300, 20), np.uint8)).startswith("data:image/jpeg")


def test_foreign_texts_are_escaped():
    facts = [("key", "<script>alert(1)</script>")]
    record = ShownRecord([Picture("image", "data:image/png;base64,AA==")], facts)
    page = worst_page([ShownSet("val", "v.h5", 3, [("loss", "1.0")], [record])], "run", "best")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert re.search(r'<img src="data:image/png', page)
