"""Somebody's PointNet on the HDF5 files of ModelNet40, with its loop, in plain PyTorch."""

import os
import sys
from itertools import pairwise

import h5py
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


def load_data(folder: str, split: str):
    with open(os.path.join(folder, f"{split}_files.txt")) as lines:
        names = [os.path.basename(line.strip()) for line in lines]
    data, label = [], []
    for name in names:
        with h5py.File(os.path.join(folder, name)) as file:
            data.append(file["data"][:])
            label.append(file["label"][:])
    return np.concatenate(data), np.concatenate(label)


class ModelNet(Dataset):
    """Clouds [num_points, 3], each with its label [1]. Training moves every point a little."""

    def __init__(self, folder: str, split: str = "train", num_points: int = 128):
        self.data, self.label = load_data(folder, split)
        self.jitters = split == "train"
        self.num_points = num_points

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, idx: int):
        points = self.data[idx, : self.num_points]
        if self.jitters:
            noise = np.clip(0.01 * np.random.randn(*points.shape), -0.05, 0.05)
            points = points + noise.astype("float32")
        return points, self.label[idx]


def shared(*widths: int):
    """Layers that treat every point alike."""
    layers = []
    for before, after in pairwise(widths):
        layers += [nn.Conv1d(before, after, 1), nn.BatchNorm1d(after), nn.ReLU()]
    return nn.Sequential(*layers)


class TNet(nn.Module):
    """Predicts a k x k matrix that aligns a cloud, near the identity."""

    def __init__(self, k: int):
        super().__init__()
        self.k = k
        self.points = shared(k, 32, 128)
        self.fc1, self.bn, self.fc2 = nn.Linear(128, 64), nn.BatchNorm1d(64), nn.Linear(64, k * k)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn(self.fc1(self.points(x).amax(2))))
        return self.fc2(x).view(-1, self.k, self.k) + torch.eye(self.k, device=x.device)


class PointNet(nn.Module):
    def __init__(self, k: int = 4):
        super().__init__()
        self.stn, self.fstn = TNet(3), TNet(32)
        self.first, self.rest = shared(3, 32), shared(32, 64, 256)
        self.fc1, self.bn, self.fc2 = nn.Linear(256, 64), nn.BatchNorm1d(64), nn.Linear(64, k)

    def forward(self, points: torch.Tensor):
        x = points.transpose(2, 1)
        x = self.first(self.stn(x) @ x)
        trans_feat = self.fstn(x)
        x = self.rest(trans_feat @ x).amax(2)
        x = self.fc2(F.relu(self.bn(self.fc1(x))))
        return F.log_softmax(x, dim=1), trans_feat


def feature_transform_regularizer(trans: torch.Tensor) -> torch.Tensor:
    identity = torch.eye(trans.shape[1], device=trans.device)
    return torch.norm(identity - trans @ trans.transpose(2, 1), dim=(1, 2)).mean()


class PointNetLoss(nn.Module):
    def __init__(self, mat_diff_loss_scale: float = 0.001):
        super().__init__()
        self.mat_diff_loss_scale = mat_diff_loss_scale

    def forward(self, pred: torch.Tensor, target: torch.Tensor, trans_feat: torch.Tensor):
        loss = F.nll_loss(pred, target)
        return loss + self.mat_diff_loss_scale * feature_transform_regularizer(trans_feat)


def train(loader, weights: str, epochs: int = 8):
    """Train from weights, and return the loss of every step."""
    model, criterion = PointNet(), PointNetLoss()
    model.load_state_dict(torch.load(weights))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.7)
    losses = []
    for _ in range(epochs):
        for points, target in loader:
            pred, trans_feat = model(points)
            loss = criterion(pred, target[:, 0].long(), trans_feat)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
    return losses


if __name__ == "__main__":
    data = ModelNet(sys.argv[1])
    print(train(DataLoader(data, batch_size=16, shuffle=True, drop_last=True), sys.argv[2]))
