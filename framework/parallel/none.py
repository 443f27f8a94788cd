"""One replica in this process."""

from typing import final

import torch
from torch import nn

from framework.parallel.defaults import SingleProcess


@final
class NoParallel(SingleProcess):
    """The model as it is."""

    graph_refusal = None
    notes: tuple[str, ...] = ()

    def __init__(self, *, device: torch.device) -> None:
        self.device = device

    def wrap(self, model: nn.Module) -> nn.Module:
        return model
