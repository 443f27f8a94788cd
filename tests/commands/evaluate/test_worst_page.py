"""The page of the worst records."""

import re

from framework.commands.evaluate.worst_page import (
    Picture,
    ShownRecord,
    ShownSet,
    worst_page,
)


def test_foreign_texts_are_escaped():
    facts = [("key", "<script>alert(1)</script>")]
    record = ShownRecord([Picture("image", "data:image/png;base64,AA==")], facts)
    page = worst_page([ShownSet("val", "v.h5", 3, [("loss", "1.0")], [record])], "run", "best")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert re.search(r'<img src="data:image/png', page)
