"""What a learning rate that is right for one batch size becomes for another.

Sources: ``linear`` (a step of k batches' mean gradient stands for k steps) and a warm-up of as many records: Goyal et al., "Accurate, large
minibatch SGD", 2017; ``sqrt`` (the noise of a mean falls with the root): Krizhevsky, "One weird trick", 2014; ``cube_root_squared`` lies between.
"""

from typing import Any, NamedTuple

RULES = {
    "none": 0.0,
    "linear": 1.0,
    "sqrt": 0.5,
    "cube_root_squared": 2 / 3,
}  # the power of the batches' ratio
KEYS = ("scaling", "reference_batch_size")  # keys of ``optim`` that are not the optimizer's own


class Scaling(NamedTuple):
    """``reference``: the batch size that the configured rate and warm-up are meant for; ``batch_size``: the one trained with."""

    rule: str
    reference: int
    batch_size: int

    @property
    def factor(self) -> float:
        """On every learning rate."""
        return (self.batch_size / self.reference) ** RULES[self.rule]

    def steps(self, count: int) -> int:
        """Optimizer steps over as many records as ``count`` batches of the reference have."""
        return (
            count
            if self.rule == "none"
            else max(min(count, 1), round(count * self.reference / self.batch_size))
        )

    def effective(self, optim: dict[str, Any], schedule: dict[str, Any]) -> dict[str, float]:
        """``batch_size``, and what it makes of the blocks' ``lr`` and ``warmup_steps``, where they have them."""
        found: dict[str, float] = {"batch_size": self.batch_size}
        if isinstance(optim.get("lr"), int | float):
            found["lr"] = optim["lr"] * self.factor
        if "warmup_steps" in schedule:
            found["warmup_steps"] = self.steps(schedule["warmup_steps"])
        return found


def scaling_of(optim: dict[str, Any], batch_size: int) -> Scaling:
    """What the block ``optim`` says for ``batch_size`` records a step."""
    return Scaling(
        optim.get("scaling") or "none", optim.get("reference_batch_size") or batch_size, batch_size
    )


def without_scaling(optim: dict[str, Any]) -> dict[str, Any]:
    """The block with the optimizer's own keys."""
    return {key: value for key, value in optim.items() if key not in KEYS}
