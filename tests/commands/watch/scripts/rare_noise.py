"""Noise for the records of a rare class only, which are drawn several times in an epoch."""

import sys

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, RandomSampler


class Rare(Dataset):
    def __init__(self):
        self.x = torch.arange(400.0).repeat(5, 1).T / 400
        self.y = (torch.arange(400) % 40 == 7).long()

    def __len__(self):
        return 400

    def __getitem__(self, i):
        return self.x[i] + (torch.randn(5) if self.y[i] else 0), int(self.y[i])


def main():
    torch.manual_seed(0)
    data = Rare()
    sampler = RandomSampler(data, replacement=True, num_samples=800)
    loader = DataLoader(data, 8, sampler=sampler, num_workers=int(sys.argv[1]))
    model = nn.Linear(5, 2)
    opt = optim.SGD(model.parameters(), 0.1)
    for epoch in range(3):
        total = 0.0
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            total += x[y == 1].sum().item()
        print(f"{epoch} {loss.item()!r} {total!r}")


if __name__ == "__main__":
    main()
