"""A user's package: a model, an objective and arrays. ``python -m sines`` makes the arrays."""

import torch
from torch import nn

from framework.contracts.training import Outcome


class Net(nn.Module):
    """Guess the frequency of a noisy sine."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, wave):
        return self.layers(wave).squeeze(1)


class RelativeError:
    """The squared error of the logarithm, and the number of guesses within 10 %."""

    def __call__(self, model, batch):
        error = model(batch["wave"]) - batch["frequency"].log()
        close = (error.abs() < 0.0953).sum()
        return Outcome(error.square().mean(), {"within_10_percent": close})

    def better(self, new, old):
        return new["loss"] < old["loss"]


def arrays(count: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    frequency = 1 + 7 * torch.rand(count, generator=generator)
    wave = torch.sin(frequency[:, None] * torch.linspace(0, 6.28, 64))
    noise = 0.1 * torch.randn(count, 64, generator=generator)
    return {"wave": wave + noise, "frequency": frequency}
