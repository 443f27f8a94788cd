import json
from pathlib import Path

import pytest
import torch
from paceline_examples.drawn_lines import drawn_lines
from paceline_examples.lines_net import LinesNet

from framework.objective.recognize import Recognize
from tests.cli.command import EXAMPLES, paceline


def lines(*widths):
    """Return padded lines of noise, and their widths."""
    images = torch.zeros(len(widths), max(widths), 32, dtype=torch.uint8)
    for image, width in zip(images, widths, strict=True):
        image[:width] = torch.randint(
            0, 256, (width, 32), generator=torch.Generator().manual_seed(width)
        )
    return images, torch.tensor(widths)


@pytest.mark.parametrize(("width", "num_steps"), [(1, 1), (2, 1), (3, 2), (40, 20)])
def test_two_columns_make_a_step(width, num_steps):
    logits, steps = LinesNet(38, 4)(*lines(width))
    assert (logits.shape, steps.tolist()) == ((1, num_steps, 38), [num_steps])


def test_neither_padding_nor_other_lines_change_a_line():
    net = LinesNet(5, 4)
    torch.nn.init.normal_(net.head[1].weight)
    logits, steps = net(*lines(31, 80, 6))
    for number, width in enumerate((31, 80, 6)):
        alone = net(*lines(width))[0][0]
        torch.testing.assert_close(logits[number, : steps[number]], alone)


def test_it_learns_to_read_a_few_lines():
    torch.manual_seed(0)
    records = [next(drawn_lines(item, seed=0, max_words=1)) for item in range(8)]
    images = [torch.from_numpy(record["image"]) for record in records]
    batch = {
        "image": torch.nn.utils.rnn.pad_sequence(images, batch_first=True),
        "image_length": torch.tensor(list(map(len, images))),
        "text": [record["text"] for record in records],
    }
    alphabet = "abcdefghijklmnopqrstuvwxyz0123456789 "
    objective = Recognize(["image", "image_length"], "text", alphabet)
    net = LinesNet(len(alphabet) + 1, 12)
    before = objective.metrics(objective(net.eval(), batch).totals)["cer"]
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    for _ in range(100):
        objective(net.train(), batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
    after = objective.metrics(objective(net.eval(), batch).totals)["cer"]
    assert before > 0.9
    assert after < 0.3


def validations(*words, folder="run"):
    """Train the recipe, and return the report of each validation."""
    items = ["prepare.val.input.items=64", f"hydra.run.dir={folder}"]
    done = paceline("train", *EXAMPLES, "recipes=recognize", *items, *words)
    assert done.code == 0, done.err
    reports = map(json.loads, Path(folder, "metrics.jsonl").read_text().splitlines())
    return [report for report in reports if report["split"] == "val"]


@pytest.mark.slow
def test_the_recipe_learns():
    first, *_, last = validations("epochs=3")
    assert first["cer"] > 0.9
    assert last["cer"] < 0.8
