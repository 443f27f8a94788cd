"""Gradient accumulation, with random noise in the Dataset."""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

ACCUMULATE = 4


class Noisy(Dataset):
    def __len__(self):
        return 128

    def __getitem__(self, i):
        x = torch.full((32,), i / 128)
        return x + 0.1 * torch.randn(32), float(i > 64)


def main():
    torch.manual_seed(3)
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
    opt = optim.Adam(model.parameters())
    for epoch in range(2):
        opt.zero_grad()
        for i, (x, y) in enumerate(loader):
            out = model(x).squeeze(1)
            loss = nn.functional.binary_cross_entropy_with_logits(out, y.float())
            (loss / ACCUMULATE).backward()
            if (i + 1) % ACCUMULATE == 0:
                opt.step()
                opt.zero_grad()
        print(f"{epoch} {loss.item()!r}")


if __name__ == "__main__":
    main()
