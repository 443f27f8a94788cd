"""The page of a replayed step."""

import torch

from framework.commands.replay.replay_page import replay_page
from tests.commands.replay.test_print_replay import SUMMARY


def test_foreign_texts_are_escaped_and_pictures_stand_beside_their_records():
    hostile = {**SUMMARY, "run": "<script>", "gradients": {"<b>": 1.0}}
    page = replay_page(hostile, {"image": torch.zeros(1, 3, 4, 4, dtype=torch.uint8)})
    assert "<script>" not in page
    assert "<b>" not in page
    assert page.count('<img src="data:image/png') == 1
    assert page.count("<figure>") == len(SUMMARY["records"])
