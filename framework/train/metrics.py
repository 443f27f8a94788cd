"""Steps to take, steps taken, and what was found in them since the last report: sums and counts, and only then means, so uneven batches weigh what they hold."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from framework.contracts.training import Outcome
from framework.errors import ConfigError

SHOWN = 5  # records named of a batch that went wrong


@dataclass(frozen=True)
class TrainPlan:
    """How long, and how often. ``max_steps``, ``validate_every`` (None: at the end of every epoch) and ``save_every`` are optimizer steps.

    ``skip_bad``: leave out a step whose gradients are not finite. ``max_missed``: steps in a row that may leave the weights as they were.
    """

    epochs: int
    max_steps: int | None = None
    report_every: int = 50
    validate_every: int | None = None
    save_every: int | None = None
    clip_norm: float | None = None
    skip_bad: bool = False
    max_missed: int = 20


@dataclass
class Progress:
    """Where a run is. ``epoch_step``: optimizer steps of the present epoch; counted where they are taken, not where data is prepared.
    ``scheduled``: of the ``step`` steps those that changed the weights; ``missed``: how many in a row, up to now, did not.
    """

    step: int = 0
    epoch: int = 0
    epoch_step: int = 0
    scheduled: int = 0
    missed: int = 0


class Pass(NamedTuple):
    """What one forward pass found, at which step, and in which records (int64 [B]; None where the batch does not say)."""

    outcome: Outcome
    step: int
    indices: Tensor | None

    @property
    def where(self) -> str:
        """As in ``step 12, records 3, 1, 7, ... (64)``."""
        if self.indices is None:
            return f"step {self.step}"
        some = ", ".join(map(str, self.indices[:SHOWN].tolist()))
        return f"step {self.step}, records {some}{f', ... ({len(self.indices)})' if len(self.indices) > SHOWN else ''}"


class Columns(NamedTuple):
    """All passes' ``counts`` and ``losses`` [passes], and ``sums``, whose elements add up: float64 on the host, so that whether they were
    saved and read in between does not change a bit.
    """

    counts: Tensor
    losses: Tensor
    sums: dict[str, Tensor]


def check_outcome(outcome: Any) -> None:
    """Check that an objective returned what can be added up. Numbers in ``sums`` become tensors. ConfigError C220."""
    if not isinstance(outcome, Outcome):
        fix = "return framework.contracts.training.Outcome(loss, sums, count)"
        raise ConfigError(
            220, "the objective's result", f"a {type(outcome).__name__}, not an Outcome", fix
        )
    loss: Any = outcome.loss
    sums: Any = outcome.sums
    if not isinstance(loss, Tensor) or loss.dim():
        fix = "return the mean over the records"
        raise ConfigError(
            220, "Outcome.loss", f"{_form(loss)}, not a tensor without dimensions", fix
        )
    if not isinstance(sums, dict):
        raise ConfigError(
            220, "Outcome.sums", f"{_form(sums)}, not a dict", "return tensors by name"
        )
    for name, value in sums.items():
        if not isinstance(value, Tensor):
            sums[name] = _as_tensor(name, value)
        elif value.dim() and value.shape != (outcome.count,) and value.numel() != 1:
            raise _no_sum(name, value)


def _as_tensor(name: str, value: Any) -> Tensor:
    if not isinstance(value, int | float):
        raise _no_sum(name, value)
    return torch.tensor(value, dtype=torch.float64)


def _no_sum(name: str, value: Any) -> ConfigError:
    what = f"{_form(value)}, neither a sum over the records nor a value for each of them"
    fix = (
        "return a tensor without dimensions; of a matrix, such as a confusion, an entry per element"
    )
    return ConfigError(220, f"Outcome.sums['{name}']", what, fix)


def _form(value: Any) -> str:
    """Return what a value is, for messages. Never raises."""
    return (
        f"has the shape {list(value.shape)}"
        if isinstance(value, Tensor)
        else f"is a {type(value).__name__}"
    )


def _nothing(outcome: Outcome) -> Outcome:
    sums = {name: torch.zeros_like(value) for name, value in outcome.sums.items()}
    return Outcome(torch.zeros_like(outcome.loss), sums, 0)


@final
class Tally:
    """What was found since the last report, on this rank."""

    def __init__(self) -> None:
        self._passes: list[Pass] = []
        self._before: Columns | None = None  # of the run that this one goes on from
        self.carried = 0.0  # records in it, over all ranks

    def add(self, outcome: Outcome, counts: bool, step: int, index: Tensor | None) -> None:
        """Keep a pass, without its graph; as nothing where its records do not count (fillers). ConfigError C220."""
        check_outcome(outcome)
        if self._passes and outcome.sums.keys() != self._passes[0].outcome.sums.keys():
            had, has = (
                ", ".join(sums) or "nothing"
                for sums in (self._passes[0].outcome.sums, outcome.sums)
            )
            raise ConfigError(
                220,
                "Outcome.sums",
                f"has {has}, and had {had} one pass before",
                "return the same keys every time",
            )
        outcome.loss = outcome.loss.detach()
        self._passes.append(Pass(outcome if counts else _nothing(outcome), step, index))

    def means(self, total: Callable[[Tensor], Tensor]) -> tuple[dict[str, float], float]:
        """Loss and metrics per record, and the number of records, over all ranks. Reads the device once per name."""
        counts, losses, sums = self.columns()
        names = sorted(sums)
        *totals, count = total(
            torch.stack(
                [(losses * counts).sum(), *(sums[name].sum() for name in names), counts.sum()]
            )
        ).tolist()
        return {
            name: value / max(count, 1)
            for name, value in zip(["loss", *names], totals, strict=True)
        }, count

    def clear(self) -> None:
        """Begin anew."""
        self._passes, self._before, self.carried = [], None, 0.0

    def columns(self) -> Columns:
        """What was found, in the order in which it came."""
        passes, before = self._passes, self._before
        if not passes:
            return before or _joined([])
        sums = {
            name: torch.cat([one.outcome.sums[name].reshape(-1) for one in passes]).cpu().double()
            for name in passes[0].outcome.sums
        }
        counts = torch.tensor([one.outcome.count for one in passes], dtype=torch.float64)
        found = Columns(
            counts, torch.stack([one.outcome.loss for one in passes]).cpu().double(), sums
        )
        return found if before is None else _joined([before, found])

    def first_bad(self) -> Pass | None:
        """The first pass of this rank whose loss is not finite."""
        return next((one for one in self._passes if not math.isfinite(one.outcome.loss)), None)

    def drop_bad(self) -> None:
        """Count what is not finite as nothing. Reads the device once."""
        if not self._passes:
            return
        good = torch.stack([one.outcome.loss for one in self._passes]).isfinite().tolist()
        self._passes = [
            one if is_good else one._replace(outcome=_nothing(one.outcome))
            for one, is_good in zip(self._passes, good, strict=True)
        ]

    def state_dict(self, gather: Callable[[Tensor], list[Tensor]]) -> dict[str, Any]:
        """Of all ranks."""
        columns = self.columns()
        return {"ranks": gather(_flat(columns)), "sums": sorted(columns.sums)}

    def load_state_dict(self, state: dict[str, Any], rank: int, world_size: int) -> None:
        """Go on after what was found before; of another number of ranks each takes on several's, or nobody's."""
        ranks = [_unflat(one, state["sums"]) for one in state["ranks"]]
        before = _joined(ranks[rank::world_size])
        self._passes, self._before = [], before if len(before.counts) else None
        self.carried = sum(float(one.counts.sum()) for one in ranks)


def _joined(parts: Sequence[Columns]) -> Columns:
    """One after the other."""
    if not parts:
        nothing = torch.zeros(0, dtype=torch.float64)
        return Columns(nothing, nothing, {})
    names = dict.fromkeys(name for part in parts for name in part.sums)
    sums = {
        name: torch.cat([part.sums[name] for part in parts if name in part.sums]) for name in names
    }
    return Columns(
        torch.cat([part.counts for part in parts]), torch.cat([part.losses for part in parts]), sums
    )


def _flat(columns: Columns) -> Tensor:
    """All of ``columns`` but the sums' names: float64 [n], for sending; sums in the order of their names."""
    values = [
        columns.counts,
        columns.losses,
        *(columns.sums[name] for name in sorted(columns.sums)),
    ]
    return torch.cat([torch.tensor([len(values), *map(len, values)], dtype=torch.float64), *values])


def _unflat(values: Tensor, names: Sequence[str]) -> Columns:
    """What ``_flat`` was made of."""
    count = int(values[0])
    counts, losses, *sums = values[count + 1 :].split(
        [int(length) for length in values[1 : count + 1]]
    )
    return Columns(
        counts.clone(),
        losses.clone(),
        {name: one.clone() for name, one in zip(sorted(names), sums, strict=False)},
    )
