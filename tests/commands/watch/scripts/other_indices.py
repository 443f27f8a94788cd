"""Bulk loading: a sampler of whole batches, as the documentation of PyTorch shows it."""

import torch
from torch import nn, optim
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset


class Named(Dataset):
    """A Dataset without a length, whose records have names too."""

    def __getitem__(self, index):
        return torch.full((5,), float(len(index) if isinstance(index, str) else index)), 0


def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 5), torch.arange(64) % 3)
    batches = BatchSampler(RandomSampler(data), 8, drop_last=False)
    model = nn.Linear(5, 3)
    opt = optim.SGD(model.parameters(), 0.1)
    for epoch in range(3):
        for loader in (
            DataLoader(data, batch_size=None, sampler=batches),
            DataLoader(Named(), sampler=["a", "bc", 7]),
        ):
            for x, y in loader:
                opt.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
        print(f"{epoch} {loss.item()!r}")


if __name__ == "__main__":
    main()
