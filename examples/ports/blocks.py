"""What Paceline needs to train somebody's GPT: its random blocks as a Dataset, and its loss."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset


class Blocks(Dataset):
    """As many random blocks as ``get_batch`` draws in a training, one after the other."""

    def __init__(self, path: str, num: int, block_size: int = 32, seed: int = 1337):
        self.path, self.block_size = path, block_size
        rng = torch.Generator().manual_seed(seed)
        num_starts = len(np.memmap(path, np.uint16, "r")) - block_size
        self.starts = torch.randint(num_starts, (num,), generator=rng)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, idx: int):
        start = int(self.starts[idx])
        tokens = np.memmap(self.path, np.uint16, "r")  # processes share the file, not the object
        block = tokens[start : start + self.block_size + 1].astype(np.int64)
        return block[:-1], block[1:]


class OwnLoss(nn.Module):
    """The loss that the model returns beside its logits."""

    def forward(self, output, targets: torch.Tensor) -> torch.Tensor:
        return output[1]
