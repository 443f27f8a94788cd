"""Somebody's forecaster: sliding windows over a CSV table, a GRU and a loop, in plain PyTorch."""

import csv
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    """Windows of a table's rows, and the next values of its first column."""

    def __init__(
        self, path: str, columns, split: str = "train", length: int = 48, horizon: int = 6
    ):
        with open(path, newline="") as f:
            rows = [[float(row[name]) for name in columns] for row in csv.DictReader(f)]
        values = torch.tensor(rows)
        cut = int(0.8 * len(values))
        mean, std = values[:cut].mean(0), values[:cut].std(0)
        values = (values - mean) / std
        self.values = values[:cut] if split == "train" else values[cut:]
        self.length, self.horizon = length, horizon

    def __len__(self) -> int:
        return len(self.values) - self.length - self.horizon + 1

    def __getitem__(self, idx: int):
        end = idx + self.length
        return self.values[idx:end], self.values[end : end + self.horizon, 0]


class Forecaster(nn.Module):
    def __init__(self, num_columns: int, horizon: int = 6, width: int = 32):
        super().__init__()
        self.gru = nn.GRU(num_columns, width, batch_first=True)
        self.head = nn.Linear(width, horizon)

    def forward(self, window: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(window)[0][:, -1])


def train(path: str, weights: str, columns=("load", "temperature"), epochs: int = 3):
    """Train from weights, and return the loss of every step and of every validation."""
    data, val = (Windows(path, columns, split) for split in ("train", "val"))
    model = Forecaster(len(columns))
    model.load_state_dict(torch.load(weights))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.MSELoss()
    losses, val_losses = [], []
    for _ in range(epochs):
        model.train()
        for window, target in DataLoader(data, batch_size=32):
            loss = criterion(model(window), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            sums = [criterion(model(w), t).item() * len(w) for w, t in DataLoader(val, 32)]
        val_losses.append(sum(sums) / len(val))
    return losses, val_losses


if __name__ == "__main__":
    print(train(*sys.argv[1:3])[1])
