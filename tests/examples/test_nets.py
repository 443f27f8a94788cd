"""Nets of the examples: their shapes, what they see, and whether they learn."""

import json
from pathlib import Path

import pytest
import torch
from paceline_examples.chips_net import ChipsNet
from paceline_examples.conv1d_net import Conv1dNet
from paceline_examples.detect_net import DetectNet
from paceline_examples.drawn_lines import drawn_lines
from paceline_examples.lines_net import LinesNet
from paceline_examples.segment_net import SegmentNet
from paceline_examples.short_sounds import RATE, short_sounds
from paceline_examples.sounds_net import SoundsNet
from paceline_examples.speedup_net import SpeedupNet
from paceline_examples.within_length import normalized, within
from torch import nn

from framework.augment.spectrogram import Spectrogram
from framework.media.sound_video import read_sound
from framework.objective.classify import Classify
from framework.objective.recognize import Recognize
from tests.cli.command import EXAMPLES, paceline

# conv1d net


def lose_no_gradient(net):
    """Let the gradient of every ReLU be at least 1."""
    for layer in net.modules():
        if isinstance(layer, nn.ReLU):
            layer.inplace = False
            layer.register_forward_hook(lambda layer, inputs, output: output + inputs[0])


def validations(recipe, *words, folder="run"):
    """Train a recipe, and return the report of each validation."""
    words = [*EXAMPLES, f"recipes={recipe}", f"hydra.run.dir={folder}", *words]
    done = paceline("train", *words)
    assert done.code == 0, done.err
    reports = map(json.loads, Path(folder, "metrics.jsonl").read_text().splitlines())
    return [report for report in reports if report["split"] == "val"]


def of_scenes(recipe, metric, *words, folder="run"):
    """Train on a few small scenes, and return a metric of each validation."""
    scenes = ["prepare.train.input.items=48", "prepare.val.input.items=13"]
    small = [f"prepare.{split}.input.call.size=48" for split in ("train", "val")]
    known = ["prepare.val.input.call.split=train", "transform.size=[48,48]"]
    reports = validations(recipe, *scenes, *small, *known, *words, folder=folder)
    return [report[metric] for report in reports]


@pytest.mark.parametrize(("channels", "length"), [(1, 1), (1, 100), (2, 31)])
def test_waves_of_any_length_keep_it(channels, length):
    wave = torch.randn(2, channels, length)
    assert Conv1dNet(channels, 4, 3)(wave).shape == wave.shape


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_each_sample_sees_as_many_as_documented(depth):
    model = Conv1dNet(1, 4, depth).double()
    wave = torch.zeros(1, 1, 201, dtype=torch.double, requires_grad=True)
    torch.nn.init.normal_(model.last.weight)
    lose_no_gradient(model)
    model(wave)[0, 0, 100].backward()
    seen = wave.grad[0, 0].nonzero().flatten()
    assert (int(seen[0]), int(seen[-1])) == (100 - 2**depth - 3, 100 + 2**depth + 3)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: Conv1dNet(1, 4, 3), (2, 1, 64)),
        (lambda: SegmentNet(3, 4, 4, 2), (2, 3, 16, 16)),
        (lambda: DetectNet(3, 2, 4), (2, 3, 16, 16)),
    ],
    ids=["conv1d", "segment", "detect"],
)
def test_every_weight_gets_a_gradient(make, shape):
    net = make()
    if isinstance(net, Conv1dNet):  # once the last layer has moved
        torch.nn.init.normal_(net.last.weight)
    net(torch.randn(shape)).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in net.parameters())


# chips net


def layers(net, kind):
    return [layer for layer in net.features if isinstance(layer, kind)]


def test_its_convolutions_and_pools_are_the_article_s():
    net = ChipsNet(3, 2, 32, 0.5)
    conv, relu, pool = nn.Conv2d, nn.ReLU, nn.MaxPool2d
    assert [type(layer) for layer in net.features] == [conv, relu, *[conv, relu, pool] * 4]
    assert [layer.out_channels for layer in layers(net, conv)] == [16, 32, 32, 64, 64]


@pytest.mark.parametrize("size", [16, 40, 125])
def test_chips_of_its_size_have_logits(size):
    assert ChipsNet(3, 2, size, 0.5)(torch.rand(2, 3, size, size)).shape == (2, 2)


# speedup net


def test_its_eight_blocks_have_the_tutorial_s_channels_and_strides():
    convs = layers(SpeedupNet(1, 10, 28), nn.Conv2d)
    assert [conv.out_channels for conv in convs] == [3, 3, 8, 8, 16, 16, 32, 32]
    assert [conv.in_channels for conv in convs] == [1, 3, 3, 8, 8, 16, 16, 32]
    assert [conv.stride for conv in convs] == [(2, 2), (1, 1)] * 4
    assert {conv.kernel_size for conv in convs} == {(3, 3)}


def test_each_block_pads_convolves_normalizes_and_leaks():
    kinds = [type(layer) for layer in SpeedupNet(1, 10, 28).features]
    assert kinds == [nn.ReflectionPad2d, nn.Conv2d, nn.BatchNorm2d, nn.LeakyReLU] * 8
    assert {layer.negative_slope for layer in layers(SpeedupNet(1, 10, 28), nn.LeakyReLU)} == {0.2}


def test_its_weights_are_drawn_by_xavier():
    torch.manual_seed(0)
    conv = layers(SpeedupNet(1, 10, 28), nn.Conv2d)[-1]
    expected = (2 / ((32 + 32) * 9)) ** 0.5
    assert float(conv.weight.detach().std()) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("side", [17, 28, 33])
def test_logits_of_images_of_its_size(side):
    assert SpeedupNet(1, 10, side)(torch.randn(2, 1, side, side)).shape == (2, 10)


def test_its_head_sees_two_by_two_pixels_of_a_digit():
    assert SpeedupNet(1, 10, 28).head.in_features == 32 * 2 * 2


# segment net


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


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "metric"), [("segment", "iou"), ("detect", "map")])
def test_a_recipe_of_scenes_learns(recipe, metric):
    values = of_scenes(recipe, metric, "epochs=16")
    assert values[-1] > values[0] + 0.1


@pytest.mark.slow
def test_two_ranks_measure_what_one_does():
    several = ["parallel=ddp", "parallel.num_processes=2"]
    (alone,) = of_scenes("segment", "iou", "max_steps=1")
    (together,) = of_scenes("segment", "iou", "max_steps=1", *several, folder="two")
    assert together == pytest.approx(alone, rel=0.01)


# detect net


@pytest.mark.parametrize(("side", "places"), [(64, 16), (80, 20), (33, 9)])
def test_every_fourth_pixel_has_classes_and_sides(side, places):
    assert DetectNet(3, 5, 4)(torch.randn(2, 3, side, side)).shape == (2, 9, places, places)


def test_a_place_sees_as_many_pixels_as_documented():
    net = DetectNet(3, 1, 4).double().eval()
    image = torch.randn(1, 3, 101, 101, dtype=torch.double, requires_grad=True)
    lose_no_gradient(net)
    net(image)[0, 0, 12, 12].backward()
    seen = image.grad.abs().sum((0, 1, 3)).nonzero().flatten()
    assert int(seen[-1] - seen[0]) + 1 == 45


# lines net


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


@pytest.mark.slow
def test_the_recipe_of_lines_learns():
    first, *_, last = validations("recognize", "prepare.val.input.items=64", "epochs=3")
    assert first["cer"] > 0.9
    assert last["cer"] < 0.8


# sounds net


def batch_of(*items):
    """Return padded sounds with their lengths and labels."""
    records = [next(short_sounds(item, seed=0)) for item in items]
    sounds = [torch.from_numpy(read_sound(record["audio"])) for record in records]
    return {
        "audio": torch.nn.utils.rnn.pad_sequence(sounds, batch_first=True),
        "audio_length": torch.tensor(list(map(len, sounds))),
        "label": torch.tensor([record["label"] for record in records]),
    }


def spectrograms(*items):
    return Spectrogram("audio", RATE, window=256, hop=128, bands=40)(batch_of(*items), None)


@pytest.mark.parametrize("frames", [1, 2, 7])
def test_sounds_of_any_length_have_a_logit_per_class(frames):
    net = SoundsNet(40, 8, 4)
    assert net(torch.rand(2, 40, frames), torch.tensor([frames, 1])).shape == (2, 8)


def test_neither_padding_nor_other_sounds_change_a_sound():
    net = SoundsNet(40, 8, 16)
    batch = spectrograms(0, 3, 5)
    together = net(batch["audio"], batch["audio_length"])
    for number, item in enumerate((0, 3, 5)):
        alone = spectrograms(item)
        logits = net(alone["audio"], alone["audio_length"])[0]
        torch.testing.assert_close(together[number], logits, rtol=1e-4, atol=1e-4)


def test_it_learns_a_few_sounds():
    torch.manual_seed(0)
    batch = spectrograms(*range(24))
    net = SoundsNet(40, 8, 16)
    objective = Classify(["audio", "audio_length"], "label", 0.0)
    before = objective(net, batch).sums["accuracy"].float().mean()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(60):
        objective(net, batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert before < 0.4
    assert objective(net, batch).sums["accuracy"].float().mean() > 0.8


@pytest.mark.slow
def test_the_recipe_of_sounds_learns_with_little_padding():
    items = ["prepare.train.input.items=1024", "prepare.val.input.items=64"]
    done = paceline("train", *EXAMPLES, "recipes=hear", "epochs=3", *items, "hydra.run.dir=run")
    assert done.code == 0, done.err
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["val"]["accuracy"] > 0.3
    assert summary["content"]["padding"] < 0.06


# within length


def test_places_before_the_length_are_inside():
    inside = within(torch.tensor([2, 0, 3]), 3)
    assert inside.tolist() == [[True, True, False], [False, False, False], [True, True, True]]


def test_each_sequence_is_normalized_over_its_own_values():
    x = 3 * torch.randn(2, 50, 4, generator=torch.Generator().manual_seed(0)) + 7
    length = torch.tensor([50, 20])
    for sequence, count in zip(normalized(x, length), length.tolist(), strict=True):
        assert abs(sequence[:count].mean()) < 1e-5
        assert abs(sequence[:count].var(correction=0) - 1) < 1e-3
        assert not sequence[count:].any()


def test_what_is_padding_does_not_matter():
    x = torch.randn(1, 9, 2)
    padded = torch.cat([x, 100 * torch.ones(1, 5, 2)], 1)
    length = torch.tensor([9])
    torch.testing.assert_close(normalized(padded, length)[:, :9], normalized(x, length))


def test_a_constant_sequence_becomes_zeros():
    assert not normalized(torch.full((1, 5, 2), 0.5), torch.tensor([5])).any()
