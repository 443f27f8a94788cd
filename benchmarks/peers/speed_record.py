"""The CIFAR-10 speed record as one plain script on arrays in the device's memory.

Written after Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU" (arXiv 2404.00498): the net,
schedule and augmentation that ``recipes=cifar10_fast`` has, without a framework. On a GPU the
weights are 16-bit.
"""

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

BATCH = 1024
MOMENTUM = 0.85
RATE = 11.5 / (1024 * (1 + 1 / (1 - MOMENTUM)))  # per example, since losses are summed
DECAY = 0.0153 * BATCH / (1024 * (1 + 1 / (1 - MOMENTUM)))
BIAS_FACTOR = 64
PEAK, START, FINAL = 0.23, 0.2, 0.07  # of the schedule
WHITEN_EPOCHS = 3  # in which the bias of the first layer learns
LOOKAHEAD = 5  # steps
SHIFT = 2  # pixels
WIDTHS = (24, 64, 256, 256)


class Images(NamedTuple):
    """Images with their labels, on a device."""

    pixels: Tensor  # uint8 [n, 3, 32, 32]
    labels: Tensor  # int64 [n]


class Result(NamedTuple):
    """The test accuracy of a trained net, and the time that training took."""

    accuracy: float
    seconds: float  # of training, without evaluating


def conv(before: int, after: int) -> nn.Conv2d:
    layer = nn.Conv2d(before, after, 3, padding="same", bias=False)
    nn.init.dirac_(layer.weight.data[:before])
    return layer


def norm(channels: int) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(channels, eps=1e-12, momentum=0.4)
    layer.weight.requires_grad_(False)
    return layer


def block(before: int, after: int) -> nn.Sequential:
    first = (conv(before, after), nn.MaxPool2d(2), norm(after), nn.GELU())
    return nn.Sequential(*first, conv(after, after), norm(after), nn.GELU())


def whitening(images: Tensor) -> nn.Conv2d:
    layer = nn.Conv2d(3, WIDTHS[0], 2)
    patches = functional.unfold(images.float(), 2).transpose(1, 2).reshape(-1, 12)
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    filters = (vectors / (values + 5e-4).sqrt()).T.reshape(12, 3, 2, 2).flip(0)
    layer.weight.data = torch.cat([filters, -filters])
    layer.weight.requires_grad_(False)
    layer.to(images.device)
    nn.init.zeros_(layer.bias)
    return layer


def make_net(images: Tensor, dtype: torch.dtype) -> nn.Sequential:
    blocks = [block(before, after) for before, after in pairwise(WIDTHS)]
    head = nn.Linear(WIDTHS[-1], 10, bias=False)
    net = nn.Sequential(whitening(images), nn.GELU(), *blocks, nn.MaxPool2d(3), nn.Flatten(), head)
    net.to(images.device, dtype, memory_format=torch.channels_last)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.float()
    return net


def normalized(images: Tensor, dtype: torch.dtype) -> Tensor:
    mean = torch.tensor([125.307, 122.961, 113.8575], device=images.device).view(1, 3, 1, 1)
    deviation = torch.tensor([51.5865, 50.847, 51.255], device=images.device).view(1, 3, 1, 1)
    pixels = (images.float() - mean) / deviation
    return pixels.to(dtype, memory_format=torch.channels_last)


def shifted(padded: Tensor) -> Tensor:
    """Cut each image out of its padded one, at a new random place."""
    side = padded.shape[-1] - 2 * SHIFT
    places = torch.randint(2 * SHIFT + 1, (len(padded), 2), device=padded.device)
    result = padded.new_empty(len(padded), 3, side, side)
    for row in range(2 * SHIFT + 1):
        for column in range(2 * SHIFT + 1):
            chosen = (places[:, 0] == row) & (places[:, 1] == column)
            result[chosen] = padded[chosen, :, row : row + side, column : column + side]
    return result


@dataclass
class Lookahead:
    """A slow copy of the weights, which the weights follow every few steps."""

    net: nn.Module

    def __post_init__(self) -> None:
        self.slow = [tensor.clone() for tensor in self._fast()]

    def _fast(self) -> list[Tensor]:
        return [tensor for tensor in self.net.state_dict().values() if tensor.is_floating_point()]

    def follow(self, kept: float) -> None:
        for slow, fast in zip(self.slow, self._fast(), strict=True):
            slow.lerp_(fast, 1 - kept)
            fast.copy_(slow)


def make_optimizer(net: nn.Module) -> torch.optim.Optimizer:
    norms = [layer.bias for layer in net.modules() if isinstance(layer, nn.BatchNorm2d)]
    held = {id(bias) for bias in norms}
    others = [p for p in net.parameters() if p.requires_grad and id(p) not in held]
    rates = {"norms": BIAS_FACTOR * RATE, "others": RATE}
    groups = [
        {"params": part, "lr": rate, "weight_decay": DECAY / rate, "full": rate}
        for part, rate in zip((norms, others), rates.values(), strict=True)
    ]
    return torch.optim.SGD(groups, momentum=MOMENTUM, nesterov=True)


def factor(progress: float) -> float:
    """Return the factor on the rates, from 0 to 1."""
    if progress < PEAK:
        return START + (1 - START) * progress / PEAK
    return 1 - (1 - FINAL) * (progress - PEAK) / (1 - PEAK)


def train(training: Images, test: Images, epochs: int, seed: int) -> Result:
    """Train from random weights on the device of the images."""
    torch.manual_seed(seed)
    device = training.pixels.device
    dtype = torch.half if device.type == "cuda" else torch.float32
    torch.backends.cudnn.benchmark = True
    images = normalized(training.pixels, dtype)
    net = make_net(images[:5000], dtype)
    optimizer, lookahead = make_optimizer(net), Lookahead(net)
    padded = functional.pad(images, (SHIFT,) * 4, "reflect")
    mirrored = torch.rand(len(images), device=device) < 0.5  # in even epochs
    per_epoch = len(images) // BATCH
    step, last = 0, epochs * per_epoch
    wait(device)
    start = time.perf_counter()
    for epoch in range(epochs):
        net[0].bias.requires_grad_(epoch < WHITEN_EPOCHS)
        cut = shifted(padded)
        flips = (mirrored ^ bool(epoch % 2)).view(-1, 1, 1, 1)
        cut = torch.where(flips, cut.flip(-1), cut).contiguous(memory_format=torch.channels_last)
        order = torch.randperm(len(cut), device=device)
        for records in order.split(BATCH)[:per_epoch]:
            logits = net(cut[records]) / 9
            loss = functional.cross_entropy(
                logits, training.labels[records], label_smoothing=0.2, reduction="sum"
            )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            for group in optimizer.param_groups:
                group["lr"] = group["full"] * factor(step / last)
            optimizer.step()
            step += 1
            if step % LOOKAHEAD == 0:
                lookahead.follow(0.95**LOOKAHEAD * (step / last) ** 3)
    lookahead.follow(1.0)
    wait(device)
    seconds = time.perf_counter() - start
    return Result(accuracy(net, normalized(test.pixels, dtype), test.labels), seconds)


@torch.no_grad()
def accuracy(net: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of right answers, from six views of each image."""
    net.eval()

    def both(view: Tensor) -> Tensor:
        return (net(view) + net(view.flip(-1))) / 2

    hits = 0
    for part, right in zip(images.split(1000), labels.split(1000), strict=True):
        padded = functional.pad(part, (1,) * 4, "reflect")
        corners = both(padded[..., :-2, :-2]) + both(padded[..., 2:, 2:])
        logits = both(part) / 2 + corners / 4
        hits += int((logits.argmax(1) == right).sum())
    return hits / len(images)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
