"""Training on the simulated device: a linear model whose gradients are written by hand."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from framework.contracts.batch import Batch
from framework.contracts.training import Outcome
from framework.parallel.none import NoParallel
from framework.train.cuda_graph import CudaRecorder, GraphedPasses
from framework.train.step import CountWeights, Passes

NUM_PIXELS = 48
LAST_STEP = 100


class Linear(nn.Module):
    """[B, 3, 4, 4] times a weight of 48 values."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(NUM_PIXELS, device=device), requires_grad=False)

    def forward(self, image: Tensor) -> Tensor:
        return image.reshape(len(image), -1).div(1000) @ self.weight


class Square:
    """The mean square error, and what its gradient needs."""

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        self.image = batch["image"]
        self.error = model(batch["image"]) - batch["label"]
        loss = self.error.square().mean()
        return Outcome(loss, {"error": self.error.sum()}, len(self.error))

    def gradient(self) -> Tensor:
        flat = self.image.reshape(len(self.image), -1).div(1000)
        return flat.t() @ self.error.mul(2 / len(self.error))


class Manual:
    """A precision, and a parallel of one rank, whose backward pass is written by hand."""

    def __init__(self, model: Linear, objective: Square) -> None:
        self.model = model
        self.objective = objective

    def accumulate(self, model: nn.Module, last: bool) -> Any:
        return nullcontext()

    autocast = nullcontext

    def backward(self, loss: Tensor) -> None:
        self.model.weight.grad = self.objective.gradient()


class Update:
    """The part of a Stepper that a captured step uses."""

    def __init__(self, model: Linear, device: torch.device) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD([model.weight], lr=0.1, momentum=0.9, fused=True)
        self.device = device
        self.num_steps = 0
        self.rate_changes = 0
        self.updated = False

    def share_rates(self) -> list[Tensor]:
        for group in self.optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["lr"])).to(self.device)
        return [group["lr"] for group in self.optimizer.param_groups]

    def rates_of(self, step: int, last_step: int) -> list[float]:
        return [0.1 / (step + 1)]

    def set_rates(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"].fill_(self.rates_of(self.num_steps, LAST_STEP)[0])

    def update(self) -> None:
        self.optimizer.step()


def train(
    loader: Any,
    epochs: int,
    device: torch.device,
    graphed: bool,
    objective: Square | None = None,
    mark: Callable[[str], None] = lambda _: None,
    anew_at: int | None = None,
) -> list[float]:
    """Train on batches, captured anew at ``anew_at``. Return losses, errors and weights."""
    model = Linear(device)
    objective = objective or Square()
    manual = Manual(model, objective)
    update = Update(model, device)
    counts = CountWeights(NoParallel(device=device), update.optimizer)
    passes = Passes(model, objective, manual, manual, counts, mark)
    kernels = passes
    recorder = CudaRecorder(device) if graphed else None
    position = lambda: (update.num_steps, LAST_STEP)  # noqa: E731
    if graphed:
        passes = GraphedPasses(kernels, update, recorder, position)
    else:
        update.share_rates()
    outcomes: list[Outcome] = []
    for epoch in range(epochs):
        for micro in loader.epoch(epoch):
            if graphed and update.num_steps == anew_at:
                passes = GraphedPasses(kernels, update, recorder, position)
            batch = {name: micro.batch[name] for name in ("image", "label")}
            outcomes.append(passes(batch, 1.0, True))
            if not update.updated:
                update.set_rates()
                update.update()
            update.updated = False
            update.num_steps += 1
            update.optimizer.zero_grad(set_to_none=True)
            mark("report")
            del batch, micro
    numbers = [[outcome.loss.cpu(), outcome.sums["error"].cpu()] for outcome in outcomes]
    return [*torch.tensor(numbers).flatten().tolist(), *model.weight.cpu().tolist()]
