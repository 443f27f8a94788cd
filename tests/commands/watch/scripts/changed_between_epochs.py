"""Images that grow between epochs, by a global variable or by an attribute of the class."""

import sys

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

SIZE = 16


class Growing(Dataset):
    scale = 1.0

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.full((1, SIZE, SIZE), i / 64 * self.scale), i % 2


def main():
    global SIZE  # noqa: PLW0603
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    opt = optim.SGD(model.parameters(), 0.01)
    loader = DataLoader(Growing(), 8, shuffle=True)
    for epoch in range(4):
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
        print(f"{epoch} {loss.item()!r} {x.shape}")
        if epoch > 0 and sys.argv[1] == "size":
            SIZE += 16
        elif epoch > 0:
            Growing.scale /= 2


if __name__ == "__main__":
    main()
