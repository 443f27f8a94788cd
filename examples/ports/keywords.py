"""Somebody's audio project: a Dataset over WAV files and a CSV, its collate_fn, and a model."""

import csv
import os

import numpy as np
import soundfile as sf
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset


class KeywordDataset(Dataset):
    def __init__(self, root: str, split: str, gain: float = 0.0):
        self.root = root
        self.gain = gain
        with open(os.path.join(root, f"{split}.csv"), newline="") as f:
            self.rows = list(csv.reader(f))
        self.words = sorted({word for _, word in self.rows})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, idx: int):
        name, word = self.rows[idx]
        wave, _ = sf.read(os.path.join(self.root, name), dtype="float32")
        if self.gain:
            wave = wave * (1 + self.gain * np.random.randn())
        return torch.as_tensor(wave, dtype=torch.float32), self.words.index(word)


def collate_fn(batch):
    waves, labels = zip(*batch)
    lengths = torch.tensor([len(w) for w in waves])
    return pad_sequence(waves, batch_first=True), lengths, torch.tensor(labels)


class KeywordNet(nn.Module):
    def __init__(self, num_words: int):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(1, 32, 80, stride=16),
            nn.ReLU(),
            nn.Conv1d(32, 64, 5, stride=2),
            nn.ReLU(),
        )
        self.fc = nn.Linear(64, num_words)

    def forward(self, wave: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        x = self.conv(wave.unsqueeze(1))
        steps = ((length - 80) // 16 + 1 - 5) // 2 + 1
        mask = torch.arange(x.shape[-1], device=x.device) < steps.clamp(min=1).unsqueeze(1)
        x = (x * mask.unsqueeze(1)).sum(-1) / mask.sum(-1, keepdim=True)
        return self.fc(x)
