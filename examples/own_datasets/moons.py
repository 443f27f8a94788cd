"""Two half moons as tuples of a point and its class, with a random transform."""

import numpy as np
from torch.utils.data import Dataset


class Shift:
    """Move a point at random."""

    def __init__(self, most=0.1):
        self.most = most

    def __call__(self, point):
        shift = np.random.uniform(-self.most, self.most, 2)  # noqa: NPY002
        return point + shift.astype(np.float32)


class Moons(Dataset):
    def __init__(self, count, transform=None):
        angle = np.linspace(0, np.pi, count)
        self.labels = np.arange(count) % 2
        side = 1 - 2 * self.labels
        points = np.stack([side * np.cos(angle) + self.labels, side * np.sin(angle)], axis=1)
        self.points = points.astype(np.float32)
        self.transform = transform

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        point = self.points[index]
        if self.transform is not None:
            point = self.transform(point)
        return point, int(self.labels[index])
