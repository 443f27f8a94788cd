"""How the learning rate follows the batch size.

Source:
    ``linear``, with a warm-up over the same number of records: Goyal et al., "Accurate, large
    minibatch SGD", 2017. ``sqrt``, as the noise of a mean falls with the root of its size:
    Krizhevsky, "One weird trick", 2014. ``cube_root_squared`` lies between the two.
"""

from typing import Any, NamedTuple

# the power of the ratio of the batch sizes
RULES = {"none": 0.0, "linear": 1.0, "sqrt": 0.5, "cube_root_squared": 2 / 3}
KEYS = ("scaling", "reference_batch_size")  # keys of ``optim`` that say how to scale


class Scaling(NamedTuple):
    """How the learning rate and the warm-up are scaled."""

    rule: str  # a name in ``RULES``
    reference: int  # the batch size that the configured rate and warm-up are meant for
    batch_size: int

    @property
    def factor(self) -> float:
        return (self.batch_size / self.reference) ** RULES[self.rule]

    def steps(self, count: int) -> int:
        """Return the optimizer steps over the records of ``count`` reference batches."""
        if self.rule == "none":
            return count
        return max(min(count, 1), round(count * self.reference / self.batch_size))

    def effective(self, optim: dict[str, Any], schedule: dict[str, Any]) -> dict[str, float]:
        """Return ``batch_size``, and the scaled ``lr`` and ``warmup_steps`` if they are set."""
        scaled: dict[str, float] = {"batch_size": self.batch_size}
        if isinstance(optim.get("lr"), int | float):
            scaled["lr"] = optim["lr"] * self.factor
        if "warmup_steps" in schedule:
            scaled["warmup_steps"] = self.steps(schedule["warmup_steps"])
        return scaled


def scaling_of(optim: dict[str, Any], batch_size: int) -> Scaling:
    """Return the scaling that the block ``optim`` asks for at ``batch_size`` records per step."""
    rule = optim.get("scaling") or "none"
    return Scaling(rule, optim.get("reference_batch_size") or batch_size, batch_size)
