"""What a project brings: a Dataset and a model, which know nothing of Paceline."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Patterns(Dataset):
    """Noisy images of ten patterns."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        patterns = torch.randn(10, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        self.labels = torch.randint(10, (count,), generator=generator)
        noise = torch.randn(count, 1, 8, 8, generator=generator)
        self.images = patterns[self.labels] + 1.5 * noise

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"image": self.images[index], "label": self.labels[index]}


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 16, kernel_size=3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(576, 10),
        )


def loader(split):
    generator = torch.Generator().manual_seed(0)
    if split == "train":
        return DataLoader(Patterns(2000, seed=1), 64, shuffle=True, generator=generator)
    return DataLoader(Patterns(500, seed=2), 64, generator=generator)
