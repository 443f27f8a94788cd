"""A model and an objective for the clips of ``speech.py``: which letter does a word begin with?"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from framework import Outcome


class FirstLetter(nn.Module):
    """Guess the first letter from how loud the waveform is at some frequencies."""

    def __init__(self, width=64):
        super().__init__()
        self.width = width
        self.layers = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 26))

    def forward(self, samples, length):
        spectrum = torch.fft.rfft(samples, n=2 * self.width).abs()[:, : self.width]
        return self.layers(spectrum / length[:, None])


class Spelling:
    """Cross-entropy of the first letter, and the number of right guesses."""

    def __call__(self, model, batch):
        guess = model(batch["samples"], batch["length"])
        letters = [ord(text[0]) - ord("a") for text in batch["transcript"]]
        letter = torch.tensor(letters, device=guess.device)
        right = (guess.argmax(1) == letter).sum()
        return Outcome(cross_entropy(guess, letter), {"right": right})

    def better(self, new, old):
        return new["right"] > old["right"]
