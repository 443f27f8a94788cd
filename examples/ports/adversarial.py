"""What Paceline needs to train somebody's DCGAN: both networks in one model, and a loss."""

from collections.abc import Mapping

import torch
from dcgan import Discriminator, Generator
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from framework import Batch, Outcome, record_noise


class Gan(nn.Module):
    def __init__(self, nz: int) -> None:
        super().__init__()
        self.G = Generator(nz)
        self.D = Discriminator()

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return self.G(noise)


class Adversarial:
    phases = ("critic", "generator")  # the names of optim.parts

    def __init__(self, nz: int) -> None:
        self.nz = nz

    def __call__(self, model: Gan, batch: Batch, phase: str | None = None) -> Outcome:
        fake = model.G(record_noise(batch, self.nz, 1, 1))
        if phase == "generator":
            return Outcome(says(model.D(fake), 1.0), {})
        loss = says(model.D(batch["image"]), 1.0) + says(model.D(fake.detach()), 0.0)
        return Outcome(loss, {})

    def better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        return new["loss"] < old["loss"]


def says(logits: torch.Tensor, answer: float) -> torch.Tensor:
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, answer))
