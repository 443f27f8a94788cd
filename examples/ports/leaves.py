"""Somebody's distillation: a small net learns from labels and a larger net, in plain PyTorch."""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, Sampler


class Leaves(Dataset):
    """The images of a folder with a subfolder per class."""

    def __init__(self, root: str):
        self.classes = sorted(path.name for path in Path(root).iterdir())
        files = [(path, path.parent.name) for path in sorted(Path(root).glob("*/*"))]
        self.samples = [(path, self.classes.index(name)) for path, name in files]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, idx: int):
        path, label = self.samples[idx]
        pixels = np.array(Image.open(path).convert("RGB"))
        return (torch.from_numpy(pixels).permute(2, 0, 1) / 255 - 0.5) / 0.25, label


class ShuffledEpochs(Sampler):
    """Another order in every epoch, the same one in every run."""

    def __init__(self, num_records: int, seed: int = 0):
        self.num_records, self.seed, self.epoch = num_records, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.num_records

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(torch.randperm(self.num_records, generator=generator).tolist())


class LeafNet(nn.Module):
    def __init__(self, num_classes: int = 3, width: int = 8):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(2 * width, num_classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(image))


def kd_loss(logits, teacher_logits, labels, temperature: float = 4.0, alpha: float = 0.7):
    """Weigh the divergence from the softened teacher with the loss of the labels."""
    student, teacher = logits / temperature, teacher_logits / temperature
    soft = F.kl_div(F.log_softmax(student, 1), F.softmax(teacher, 1), reduction="batchmean")
    hard = F.cross_entropy(logits, labels, label_smoothing=0.1)
    return alpha * temperature**2 * soft + (1 - alpha) * hard


def train(root: str, weights: str, teacher_weights: str, epochs: int = 6):
    """Return the loss of every step, and the accuracy of the average after every epoch."""
    data, val = Leaves(f"{root}/train"), Leaves(f"{root}/val")
    student, teacher = LeafNet(), LeafNet(width=24).eval()
    student.load_state_dict(torch.load(weights))
    teacher.load_state_dict(torch.load(teacher_weights))
    average = AveragedModel(student, multi_avg_fn=get_ema_multi_avg_fn(0.9)).eval()
    average.update_parameters(student)  # begins at the first weights
    groups = [
        {"params": student.backbone.parameters(), "lr": 0.02},
        {"params": student.head.parameters(), "lr": 0.1},
    ]
    optimizer = torch.optim.SGD(groups, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[3, 5], gamma=0.1)
    sampler = ShuffledEpochs(len(data))
    losses, accuracies = [], []
    for epoch in range(epochs):
        student.train()
        sampler.set_epoch(epoch)
        for images, labels in DataLoader(data, batch_size=16, sampler=sampler):
            with torch.no_grad():
                teacher_logits = teacher(images)
            loss = kd_loss(student(images), teacher_logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update_parameters(student)
            losses.append(loss.item())
        scheduler.step()
        with torch.no_grad():
            right = sum((average(x).argmax(1) == y).sum().item() for x, y in DataLoader(val, 16))
        accuracies.append(right / len(val))
    return losses, accuracies


if __name__ == "__main__":
    print(train(*sys.argv[1:4]))
