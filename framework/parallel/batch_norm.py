"""Batch statistics over all ranks. torch's SyncBatchNorm on CUDA; on CPU, which it refuses, one of ours."""

from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


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


@final
class _Normalized(torch.autograd.Function):
    """(x float [B, C, ...] normalized by all ranks' mean and biased variance [C], these, all ranks' count), by torch's own kernels for one process
    and one exchange each way. Source of the sum of variances: Chan et al., "Updating formulae and a pairwise algorithm for sample variances", 1979.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mine = torch.batch_norm_update_stats(x, None, None, 0.0)
        each = _gathered(torch.cat([x.new_tensor([x.numel() / x.shape[1]]), *mine])).double()
        counts, (means, variances) = each[:, :1], each[:, 1:].chunk(2, dim=1)
        count = counts.sum()
        mean = (counts * means).sum(0) / count
        variance = ((counts * (variances + (means - mean).square())).sum(0) / count).to(x.dtype)
        ctx.eps, mean = eps, mean.to(x.dtype)
        ctx.save_for_backward(x, weight, mean, torch.rsqrt(variance + eps), count)
        ctx.mark_non_differentiable(mean, variance, count)
        return (
            nn.functional.batch_norm(x, mean, variance, weight, bias, eps=eps),
            mean,
            variance,
            count,
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]  # once_differentiable's type
        gradient, (x, weight, mean, scale, count) = gradients[0], ctx.saved_tensors
        _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            gradient, x, weight, None, None, mean, scale, True, ctx.eps, [False, True, True]
        )
        means = torch.stack([of_weight, of_bias])
        dist.all_reduce(means)
        along, all_of_it = means.div_(count.to(x.dtype))
        shape = (-1, *[1] * (x.dim() - 2))
        by_gradient = weight * scale  # gradient * by_gradient + x * by_x + rest: two passes
        by_x = -by_gradient * scale * along
        rest = -by_x * mean - by_gradient * all_of_it
        of_x = torch.addcmul(rest.view(shape), gradient, by_gradient.view(shape)).addcmul_(
            x, by_x.view(shape)
        )
        return of_x, of_weight, of_bias, None


def _gathered(mine: Tensor) -> Tensor:
    """[ranks, values]: in the ranks' order, so that all add alike."""
    each = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(each, mine)
    return torch.stack(each)


class HostSyncBatchNorm(nn.Module):
    """A batch norm whose mean and variance are those of all ranks' records; one exchange a pass."""

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, old: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) -> None:
        super().__init__()
        self.eps, self.momentum, self.affine = old.eps, old.momentum, old.affine
        self.weight, self.bias = (
            old.weight,
            old.bias,
        )  # the same parameters: the optimizer may hold them already
        self.register_buffer("running_mean", old.running_mean)
        self.register_buffer("running_var", old.running_var)
        self.register_buffer("num_batches_tracked", old.num_batches_tracked)
        self.train(old.training)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            return nn.functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        wide = x if x.dtype == torch.float64 else x.float()
        if self.affine:
            weight, bias = self.weight.to(wide.dtype), self.bias.to(wide.dtype)
        else:
            weight, bias = wide.new_ones(x.shape[1]), wide.new_zeros(x.shape[1])
        normal, mean, variance, count = _Normalized.apply(wide, weight, bias, self.eps)
        self._track(mean, variance * (count / (count - 1).clamp(min=1)).to(variance.dtype))
        return normal.to(x.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, unbiased: Tensor) -> None:
        if (
            self.running_mean is None
            or self.running_var is None
            or self.num_batches_tracked is None
        ):
            return
        self.num_batches_tracked += 1
        momentum = (
            self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
        )
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(unbiased, momentum)
