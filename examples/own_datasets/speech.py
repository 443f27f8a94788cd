"""WAV files of any length, each with a transcript beside it."""

import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset


@dataclass
class Clip:
    """A waveform, float32 [samples], and what is said in it."""

    samples: torch.Tensor
    transcript: str


class Clips(Dataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).glob("*.wav"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        with wave.open(str(path)) as file:
            data = np.frombuffer(file.readframes(file.getnframes()), np.int16)
        samples = torch.from_numpy(data / np.float32(32768))
        return Clip(samples, path.with_suffix(".txt").read_text())


def collate(clips):
    """Pad the waveforms with zeros: float32 [B, longest]."""
    samples = pad_sequence([clip.samples for clip in clips], batch_first=True)
    lengths = torch.tensor([len(clip.samples) for clip in clips])
    texts = [clip.transcript for clip in clips]
    return {"samples": samples, "length": lengths, "transcript": texts}
