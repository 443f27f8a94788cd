"""Somebody's metric learning: triplets from P x K batches, in plain PyTorch, from the web."""

import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Sampler


class Signatures(Dataset):
    """Signatures of several writers: curves of x and y, [2, 32], each with its writer."""

    def __init__(self, split: str = "train", writers: int = 12, each: int = 8):
        self.targets = np.repeat(np.arange(writers), each)
        hands = np.random.default_rng(7).standard_normal((writers, 2, 32))
        rng = np.random.default_rng([1, split == "train"])
        noise = rng.standard_normal((writers * each, 2, 32))
        self.strokes = torch.tensor(hands[self.targets] + 0.7 * noise, dtype=torch.float32)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, idx: int):
        return self.strokes[idx], int(self.targets[idx])


class PKSampler(Sampler):
    """Batches of P classes with K records each. Every class comes once per epoch."""

    def __init__(self, labels, p: int, k: int, seed: int = 0):
        self.members = [np.flatnonzero(np.asarray(labels) == label) for label in np.unique(labels)]
        self.p, self.k = p, k
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.members) // self.p

    def __iter__(self):
        rng = np.random.default_rng([self.seed, self.epoch])
        classes = rng.permutation(len(self.members))
        for batch in range(len(self)):
            chosen = classes[batch * self.p : (batch + 1) * self.p]
            members = [rng.choice(self.members[c], self.k, replace=False) for c in chosen]
            yield np.concatenate(members).tolist()


class StrokeNet(nn.Module):
    def __init__(self, width: int = 32, size: int = 16):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(2, width, 5, padding=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(8),
            nn.Flatten(),
            nn.Linear(8 * width, size),
        )

    def forward(self, stroke: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.layers(stroke), dim=1)


class TripletLoss(nn.Module):
    """Each record with its furthest positive and its nearest negative in the batch."""

    def __init__(self, margin: float = 0.3):
        super().__init__()
        self.margin = margin

    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        distances = 2 - 2 * embeddings @ embeddings.T
        same = labels[:, None] == labels
        positive = distances.masked_fill(~same, -torch.inf).amax(1)
        negative = distances.masked_fill(same, torch.inf).amin(1)
        return F.relu(positive - negative + self.margin).mean()


def train(weights: str, epochs: int = 6, lr: float = 0.05):
    """Train from weights, and return the loss of every step."""
    dataset, model, criterion = Signatures(), StrokeNet(), TripletLoss()
    model.load_state_dict(torch.load(weights))
    sampler = PKSampler(dataset.targets, p=4, k=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for strokes, labels in DataLoader(dataset, batch_sampler=sampler):
            loss = criterion(model(strokes), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


if __name__ == "__main__":
    print(train(sys.argv[1]))
