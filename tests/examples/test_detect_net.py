import json
from pathlib import Path

import pytest
import torch
from paceline_examples.detect_net import DetectNet

from tests.cli.command import EXAMPLES, paceline


@pytest.mark.parametrize(("side", "places"), [(64, 16), (80, 20), (33, 9)])
def test_every_fourth_pixel_has_classes_and_sides(side, places):
    assert DetectNet(3, 5, 4)(torch.randn(2, 3, side, side)).shape == (2, 9, places, places)


def test_a_place_sees_as_many_pixels_as_is_said():
    net = DetectNet(3, 1, 4).double().eval()
    image = torch.randn(1, 3, 101, 101, dtype=torch.double, requires_grad=True)
    for layer in net.modules():
        if isinstance(layer, torch.nn.ReLU):
            layer.inplace = False
            layer.register_forward_hook(lambda layer, inputs, output: output + inputs[0])
    net(image)[0, 0, 12, 12].backward()
    seen = image.grad.abs().sum((0, 1, 3)).nonzero().flatten()
    assert int(seen[-1] - seen[0]) + 1 == 45


def test_every_weight_gets_a_gradient():
    net = DetectNet(3, 2, 4)
    net(torch.randn(2, 3, 16, 16)).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in net.parameters())


def map_of(*words, folder="run"):
    """Train on a few small scenes, and return ``map`` of each validation."""
    scenes = ["prepare.train.input.items=48", "prepare.val.input.items=13"]
    small = [f"prepare.{split}.input.call.size=48" for split in ("train", "val")]
    known = "prepare.val.input.call.split=train"
    run = ["transform.size=[48,48]", f"hydra.run.dir={folder}"]
    done = paceline("train", *EXAMPLES, "recipes=detect", *scenes, *small, known, *run, *words)
    assert done.code == 0, done.err
    reports = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    return [report["map"] for report in reports if report["split"] == "val"]


@pytest.mark.slow
def test_the_recipe_learns():
    values = map_of("epochs=16")
    assert values[-1] > values[0] + 0.1
