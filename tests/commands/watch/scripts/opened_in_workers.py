"""Workers that open a file, and keep it in the Dataset."""

import sys

import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, Subset, get_worker_info


class Opened(Dataset):
    def __init__(self):
        self.file = None
        self.path = "rows.npy"

    def __len__(self):
        return 64

    def __getitem__(self, i):
        if self.file is None:
            return torch.zeros(5), i % 3
        return torch.from_numpy(np.array(self.file[i])), i % 3


def sets_an_attribute(_):
    data = get_worker_info().dataset
    data.file = np.load(data.path, mmap_mode="r")


def sets_one_of_a_part(_):
    data = get_worker_info().dataset.dataset
    data.file = np.load(data.path, mmap_mode="r")


def main():
    torch.manual_seed(0)
    np.save("rows.npy", np.random.default_rng(0).random((64, 5), "f4"))
    data = Opened()
    start = sets_an_attribute
    if sys.argv[1] == "part":
        data = Subset(data, range(60))
        start = sets_one_of_a_part
    model = nn.Linear(5, 3)
    opt = optim.SGD(model.parameters(), 0.1)
    for epoch in range(2):
        for x, y in DataLoader(data, 8, shuffle=True, num_workers=2, worker_init_fn=start):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
        print(f"{epoch} {loss.item()!r}")


if __name__ == "__main__":
    main()
