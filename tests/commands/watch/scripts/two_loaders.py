"""Training and validation loaders with worker processes, and the best model saved."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split


class Table(Dataset):
    """Rows that take a while to make."""

    def __init__(self, rows, delay):
        g = torch.Generator().manual_seed(0)
        self.x = torch.randn(rows, 16, generator=g)
        self.y = (self.x.sum(1) > 0).long()
        self.delay = delay

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        time.sleep(self.delay)
        return self.x[i], self.y[i]


@torch.no_grad()
def validate(model, loader):
    model.eval()
    right = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    return right / len(loader.dataset)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rows", type=int, default=120)
    p.add_argument("--delay", type=float, default=0.001)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--start", default=None)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--save", default=None)
    args = p.parse_args()
    torch.manual_seed(0)
    train, val = random_split(Table(args.rows, args.delay), [0.8, 0.2])
    options = {"batch_size": 8, "num_workers": args.workers}
    if args.workers:
        options["multiprocessing_context"] = args.start
    train_loader = DataLoader(train, shuffle=True, **options)
    val_loader = DataLoader(val, **options)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    opt = torch.optim.SGD(model.parameters(), 0.1)
    best = 0.0
    for epoch in range(args.epochs):
        model.train()
        for x, y in train_loader:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        accuracy = validate(model, val_loader)
        if accuracy >= best and args.save:
            torch.save(model.state_dict(), args.save)
        best = max(best, accuracy)
        print(f"{epoch}: {loss.item()!r} {accuracy!r}")


if __name__ == "__main__":
    main()
