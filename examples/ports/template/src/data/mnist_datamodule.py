"""MNIST as torchvision leaves it on the disk: data_dir/MNIST/raw/*-ubyte."""

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, random_split


class MNIST(Dataset):
    def __init__(self, data_dir: str, train: bool):
        raw = Path(data_dir, "MNIST", "raw")
        name = "train" if train else "t10k"
        images = np.fromfile(raw / f"{name}-images-idx3-ubyte", np.uint8, offset=16)
        labels = np.fromfile(raw / f"{name}-labels-idx1-ubyte", np.uint8, offset=8)
        self.images = torch.tensor(images.reshape(len(labels), 1, 28, 28))
        self.labels = labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, idx: int):
        return (self.images[idx] / 255 - 0.1307) / 0.3081, self.labels[idx]


class MNISTDataModule:
    def __init__(
        self,
        data_dir="data/",
        train_val_test_split=(55_000, 5_000, 10_000),
        batch_size=64,
        num_workers=0,
    ):
        self.data_dir = data_dir
        self.train_val_test_split = train_val_test_split
        self.batch_size, self.num_workers = batch_size, num_workers

    def setup(self, stage=None):
        dataset = ConcatDataset([MNIST(self.data_dir, train) for train in (True, False)])
        self.data_train, self.data_val, self.data_test = random_split(
            dataset, self.train_val_test_split, generator=torch.Generator().manual_seed(42)
        )

    def train_dataloader(self):
        return self._loader(self.data_train, shuffle=True)

    def val_dataloader(self):
        return self._loader(self.data_val)

    def test_dataloader(self):
        return self._loader(self.data_test)

    def _loader(self, dataset, shuffle=False):
        return DataLoader(dataset, self.batch_size, shuffle, num_workers=self.num_workers)
