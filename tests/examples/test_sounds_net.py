import json
from pathlib import Path

import pytest
import torch
from paceline_examples.short_sounds import RATE, short_sounds
from paceline_examples.sounds_net import SoundsNet

from framework.augment.spectrogram import Spectrogram
from framework.media.sound_video import read_sound
from framework.objective.classify import Classify
from tests.cli.command import EXAMPLES, paceline


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
def test_the_recipe_learns_with_little_padding():
    items = ["prepare.train.input.items=1024", "prepare.val.input.items=64"]
    done = paceline("train", *EXAMPLES, "recipes=hear", "epochs=3", *items, "hydra.run.dir=run")
    assert done.code == 0, done.err
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["val"]["accuracy"] > 0.3
    assert summary["content"]["padding"] < 0.06
