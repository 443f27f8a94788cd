import json
from pathlib import Path

import pytest
import torch
from paceline_examples.segment_net import SegmentNet

from tests.cli.command import EXAMPLES, paceline


@pytest.mark.parametrize(("height", "width"), [(64, 64), (37, 50), (8, 9)])
def test_every_pixel_of_an_image_of_any_size_has_logits(height, width):
    net = SegmentNet(3, 6, 4, 3).eval()
    assert net(torch.randn(2, 3, height, width)).shape == (2, 6, height, width)


def test_a_pixel_sees_far_beyond_its_neighbors():
    net, image = SegmentNet(3, 2, 4, 3).eval(), torch.ones(1, 3, 65, 65, requires_grad=True)
    for parameter in net.parameters():
        parameter.data.abs_()  # positive sums only: no ReLU cuts the way from a pixel to the output
    net(image)[0, 0, 32, 32].backward()
    rows = image.grad.abs().sum((0, 1, 3)).nonzero().flatten()
    assert rows[-1] - rows[0] > 30


def test_every_weight_gets_a_gradient():
    net = SegmentNet(3, 4, 4, 2)
    net(torch.randn(2, 3, 16, 16)).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in net.parameters())


def iou_of(*words, folder="run"):
    """Train on a few small scenes, and return ``iou`` of each validation."""
    scenes = ["prepare.train.input.items=48", "prepare.val.input.items=13"]
    small = [f"prepare.{split}.input.call.size=48" for split in ("train", "val")]
    known = "prepare.val.input.call.split=train"
    run = ["transform.size=[48,48]", f"hydra.run.dir={folder}"]
    done = paceline("train", *EXAMPLES, "recipes=segment", *scenes, *small, known, *run, *words)
    assert done.code == 0, done.err
    reports = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    return [report["iou"] for report in reports if report["split"] == "val"]


@pytest.mark.slow
def test_the_recipe_learns():
    values = iou_of("epochs=16")
    assert values[-1] > values[0] + 0.1


@pytest.mark.slow
def test_two_ranks_measure_what_one_does():
    several = ["parallel=ddp", "parallel.num_processes=2"]
    (alone,) = iou_of("max_steps=1")
    (together,) = iou_of("max_steps=1", *several, folder="two")
    assert together == pytest.approx(alone, rel=0.01)
