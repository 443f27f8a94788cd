"""Training loops for tests of the hooks, with sleeps that are far longer than a step."""

import time
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from framework.commands.watch.torch_hooks import TorchHooks

PAUSE_S = 0.05


class Numbers(Dataset):
    """Items that take a while."""

    def __init__(self, count=8, delay_s=0.0):
        self.count = count
        self.delay_s = delay_s

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.delay_s)
        return torch.full((3,), float(index)), index % 2


class Pausing(nn.Module):
    """A model that takes a while."""

    def __init__(self, pause_s=0.0):
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.pause_s = pause_s

    def forward(self, inputs):
        time.sleep(self.pause_s)
        return self.inner(inputs)


@contextmanager
def hooked(num_steps=0, finish=lambda: None):
    """Install the hooks around a loop, and yield them."""
    hooks = TorchHooks(num_steps, finish)
    hooks.install()
    try:
        yield hooks
    finally:
        hooks.end()
        hooks.remove()


def train(loader, model, epochs=1, accumulate=1, between=lambda: None):
    """Train as people write it."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(epochs):
        model.train()
        for number, (inputs, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            if (number + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
            between()


@torch.no_grad()
def validate(loader, model):
    model.eval()
    for inputs, _ in loader:
        model(inputs)


def loader(count=8, delay_s=0.0, **options):
    return DataLoader(Numbers(count, delay_s), batch_size=2, **options)
