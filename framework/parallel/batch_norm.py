"""Batch norm with the statistics of all ranks.

CUDA uses torch's SyncBatchNorm. torch refuses it on the CPU, which uses HostSyncBatchNorm instead.
"""

from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from framework.parallel.hang import Exchange

_BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def synchronized(model: nn.Module, device: torch.device, exchange: Exchange) -> nn.Module:
    """Replace every batch norm of a model by one that synchronizes. Names in its state stay.

    ``exchange`` measures how long those of the CPU wait for other ranks.
    """
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    if isinstance(model, _BatchNorm):
        return HostSyncBatchNorm(model, exchange)
    for name, child in model.named_children():
        replacement = synchronized(child, device, exchange)
        if replacement is not child:
            setattr(model, name, replacement)
    return model


def is_synchronized(model: nn.Module) -> bool:
    """Return whether a batch norm of the model exchanges its statistics."""
    kinds = (HostSyncBatchNorm, nn.SyncBatchNorm)
    return any(isinstance(module, kinds) for module in model.modules())


class HostSyncBatchNorm(nn.Module):
    """A batch norm on the CPU with the mean and variance of all ranks' records."""

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, old: _BatchNorm, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange
        self.eps = old.eps
        self.momentum = old.momentum
        self.affine = old.affine
        # The same parameters, because the optimizer may hold them already.
        self.weight = old.weight
        self.bias = old.bias
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
            affine = self.weight.to(wide.dtype), self.bias.to(wide.dtype)
        else:
            affine = wide.new_ones(wide.shape[1]), wide.new_zeros(wide.shape[1])
        result, mean, variance, count = _Normalized.apply(wide, *affine, self.eps, self._exchange)
        if self.running_mean is not None:
            assert self.running_var is not None
            assert self.num_batches_tracked is not None
            unbiased = variance * (count / (count - 1).clamp(min=1)).to(variance.dtype)
            with torch.no_grad():
                self.num_batches_tracked += 1
                momentum = self.momentum
                if momentum is None:
                    momentum = 1 / float(self.num_batches_tracked)
                self.running_mean.lerp_(mean, momentum)
                self.running_var.lerp_(unbiased, momentum)
        return result.to(x.dtype)


@final
class _Normalized(torch.autograd.Function):
    """Normalize x (float [B, C, ...]) by the mean and variance of all ranks.

    It uses torch's kernels for one process, and one exchange in each direction. It returns the
    normalized x, the mean [C], the biased variance [C] and the number of values per channel.

    Source: sums of variances by Chan et al., "Updating formulae and a pairwise algorithm for
    computing sample variances", 1979.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, exchange: Exchange
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        stats = torch.batch_norm_update_stats(x, None, None, 0.0)
        own = torch.cat([x.new_tensor([x.numel() / x.shape[1]]), *stats])
        gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        exchange.begin()  # torch.compile does not know our context
        dist.all_gather(gathered, own)
        exchange.end()
        every = torch.stack(gathered).double()  # in rank order, so that all ranks add alike
        counts = every[:, :1]
        means, variances = every[:, 1:].chunk(2, dim=1)
        count = counts.sum()
        mean = (counts * means).sum(0) / count
        variance = ((counts * (variances + (means - mean).square())).sum(0) / count).to(x.dtype)
        mean = mean.to(x.dtype)
        ctx.eps = eps
        ctx.exchange = exchange
        ctx.save_for_backward(x, weight, mean, torch.rsqrt(variance + eps), count)
        ctx.mark_non_differentiable(mean, variance, count)
        result = nn.functional.batch_norm(x, mean, variance, weight, bias, eps=eps)
        return result, mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradient = gradients[0]
        x, weight, mean, scale, count = ctx.saved_tensors
        _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            gradient, x, weight, None, None, mean, scale, True, ctx.eps, [False, True, True]
        )
        sums = torch.stack([of_weight, of_bias])
        ctx.exchange.begin()
        dist.all_reduce(sums)
        ctx.exchange.end()
        mean_of_weight, mean_of_bias = sums.div_(count.to(x.dtype))
        # The gradient of x is gradient * by_gradient + x * by_x + rest, computed in two passes.
        shape = (-1, *[1] * (x.dim() - 2))
        by_gradient = weight * scale
        by_x = -by_gradient * scale * mean_of_weight
        rest = -by_x * mean - by_gradient * mean_of_bias
        of_x = torch.addcmul(rest.view(shape), gradient, by_gradient.view(shape))
        return of_x.addcmul_(x, by_x.view(shape)), of_weight, of_bias, None, None
