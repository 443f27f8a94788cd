"""Batch statistics over all ranks. torch's SyncBatchNorm on CUDA; on CPU, which it refuses, differentiable all-reduces of sums."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def synchronized(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with every batch norm replaced by one that sees all ranks. Names in its ``state_dict`` stay."""
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for name, child in model.named_children():
        if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            setattr(model, name, HostSyncBatchNorm(child))
        else:
            synchronized(child, device)
    if isinstance(model, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
        return HostSyncBatchNorm(model)
    return model


class _AllReduce(torch.autograd.Function):
    """Sum over ranks; the gradient of a sum is the sum of the gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total


class HostSyncBatchNorm(nn.Module):
    """A batch norm whose mean and variance are those of all ranks' records; two exchanges a pass, so that the variance is exact."""

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, old: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) -> None:
        super().__init__()
        self.eps, self.momentum, self.affine = old.eps, old.momentum, old.affine
        self.weight, self.bias = old.weight, old.bias  # the same parameters: the optimizer may hold them already
        self.register_buffer("running_mean", old.running_mean)
        self.register_buffer("running_var", old.running_var)
        self.register_buffer("num_batches_tracked", old.num_batches_tracked)
        self.train(old.training)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            return nn.functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        channels = x.transpose(0, 1).flatten(1)
        channels = channels if x.dtype == torch.float64 else channels.float()
        count = _AllReduce.apply(channels.new_tensor([channels.shape[1]]))
        mean = _AllReduce.apply(channels.sum(1)) / count
        centered = channels - mean.unsqueeze(1)
        variance = _AllReduce.apply(centered.square().sum(1)) / count
        self._track(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
        normal = centered * torch.rsqrt(variance + self.eps).unsqueeze(1)
        if self.affine:
            normal = normal * self.weight.unsqueeze(1) + self.bias.unsqueeze(1)
        return normal.view(x.shape[1], x.shape[0], *x.shape[2:]).transpose(0, 1).to(x.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, unbiased: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        momentum = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(unbiased, momentum)
