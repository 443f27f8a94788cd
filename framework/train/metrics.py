"""How long to train, how far a run is, and the means of what steps returned, of sums and counts."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from framework.contracts.training import MakesMetrics, Outcome
from framework.errors import ConfigError

SHOWN = 5  # records that a message names of a batch that went wrong
NOTHING = torch.zeros(0, dtype=torch.float64)


@dataclass(frozen=True)
class TrainPlan:
    """How long to train, and after how many optimizer steps something is due."""

    epochs: int
    max_steps: int | None = None
    report_every: int = 50
    validate_every: int | None = None  # None: at the end of every epoch
    validate_first: bool = False  # also before the first step
    save_every: int | None = None
    save_epochs: int | None = 1  # epochs between saved states; None: only with a validation
    keep_best: int = 1  # the best validations whose weights are kept
    clip_norm: float | None = None  # the largest norm of the gradients
    skip_bad: bool = False  # whether a step whose gradients are not finite is skipped
    max_missed: int = 20  # how many steps in a row may leave the weights unchanged

    def validates(self, step: int, ends_epoch: bool) -> bool:
        if self.validate_every is None:
            return ends_epoch
        return step % self.validate_every == 0

    def saves(self, step: int) -> bool:
        return self.save_every is not None and step % self.save_every == 0


@dataclass
class Progress:
    """How far a run is, counted where steps are taken and not where data is prepared."""

    step: int = 0  # optimizer steps taken
    epoch: int = 0  # epochs completed
    epoch_step: int = 0  # optimizer steps of the current epoch
    scheduled: int = 0  # steps that changed the weights
    missed: int = 0  # the latest steps in a row that did not

    @property
    def epoch_number(self) -> int:
        """The epoch of the latest step, counted from 1."""
        return self.epoch + (self.epoch_step > 0)

    def total_steps(self, plan: TrainPlan, epoch_steps: int) -> int:
        """Return the steps of the run. Epochs that are over count with the steps that they had."""
        steps = self.step - self.epoch_step + max(0, plan.epochs - self.epoch) * epoch_steps
        return steps if plan.max_steps is None else min(steps, plan.max_steps)


def next_due(
    plan: TrainPlan, progress: Progress, epoch_steps: int, last_step: int, thaws: Iterable[int]
) -> int:
    """Return the next step that reports, validates, saves, thaws layers, or ends an epoch."""
    step = progress.step
    due = [last_step, step - progress.epoch_step % epoch_steps + epoch_steps]
    intervals = (plan.report_every, plan.validate_every, plan.save_every)
    due += [(step // every + 1) * every for every in intervals if every is not None]
    due += [thaw for thaw in thaws if thaw > step]
    return min(due)


class PassPlace(NamedTuple):
    """The step of a forward pass, and its records."""

    step: int  # counted from 1
    indices: Tensor | None  # the records, int64 [B]; None if the batch does not say

    @property
    def where(self) -> str:
        """Where it happened, such as ``step 12, records 3, 1, 7, ... (64)``."""
        if self.indices is None:
            return f"step {self.step}"
        some = ", ".join(map(str, self.indices[:SHOWN].tolist()))
        more = f", ... ({len(self.indices)})" if len(self.indices) > SHOWN else ""
        return f"step {self.step}, records {some}{more}"


class Columns(NamedTuple):
    """The results of many passes, as float64 on the host, which keeps every bit of the means."""

    counts: Tensor  # what counts in each pass: its records, or ``Outcome.count``, [passes]
    losses: Tensor  # the mean loss of each pass, [passes]
    sums: dict[str, Tensor]  # by name, values that add up over what counts


class Results(NamedTuple):
    """What the records since the last report, or of a validation set, come to."""

    means: dict[str, float]  # loss and metrics
    num_records: float  # over all ranks, without those before a resumed run
    arrays: dict[str, Tensor]  # metrics that are arrays, on the host


def check_outcome(outcome: Any, num_records: int) -> list[str]:
    """Return the names of arrays in ``sums``, whose numbers become tensors. ConfigError C220."""
    if not isinstance(outcome, Outcome):
        what = f"a {type(outcome).__name__}, not an Outcome"
        fix = "return framework.contracts.training.Outcome(loss, sums)"
        raise ConfigError(220, "the objective's result", what, fix)
    loss: Any = outcome.loss
    count: Any = outcome.count
    sums: Any = outcome.sums
    _check_scalar("Outcome.loss", loss, "return the mean over what counts")
    _check_dict("Outcome.sums", sums)
    arrays: list[str] = []
    for name, value in sums.items():
        if isinstance(value, Tensor):
            if not value.dim() or value.shape == (num_records,) or value.numel() == 1:
                continue
            # [B, 1] is most likely meant to be a value for each record
            if value.dim() > 1 and value.shape != (num_records, 1):
                arrays.append(name)
                continue
        elif isinstance(value, int | float):
            sums[name] = torch.tensor(value, dtype=torch.float64)
            continue
        what = f"{_form(value)}, neither a sum over the records nor a value for each of them"
        fix = "return a tensor without dimensions, [records], or an array of two or more dimensions"
        fix += "; a row of numbers is one as [1, n]"
        raise ConfigError(220, f"Outcome.sums['{name}']", what, fix)
    if isinstance(count, Tensor):
        is_count = not (count.dim() or count.is_floating_point() or count.device != loss.device)
    else:
        is_count = count is None or (isinstance(count, Integral) and int(count) >= 0)
    if not is_count:
        fix = "return an integer, or an integer tensor without dimensions on the loss's device"
        raise ConfigError(220, "Outcome.count", f"{_form(count)}: {count}", fix)
    if outcome.totals == {} and outcome.losses == {}:  # the usual case costs no call
        return arrays
    _check_dict("Outcome.totals", outcome.totals)
    totals: Any = outcome.totals
    for name, value in totals.items():
        if not isinstance(value, Tensor) or value.device != loss.device:
            what = f"is not a tensor on {loss.device}, the device of the loss"
            fix = "return tensors that add up over the batches"
            raise ConfigError(220, f"Outcome.totals['{name}']", what, fix)
    # Move the losses by name into the sums, weighted by what counts.
    _check_dict("Outcome.losses", outcome.losses)
    outcome.sums = dict(sums)
    num: Any = num_records if count is None else count
    for name, value in outcome.losses.items():
        where = f"Outcome.losses['{name}']"
        _check_scalar(where, value, "return the mean over the records")
        if name == "loss" or name in outcome.sums:
            raise ConfigError(220, where, "another value has this name", "give it another name")
        outcome.sums[name] = _without_nan(value.detach().double() * num, num)
    outcome.losses = {}
    return arrays


def _check_dict(where: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise ConfigError(220, where, f"{_form(value)}, not a dict", "return tensors by name")


def _check_scalar(where: str, value: Any, fix: str) -> None:
    if not isinstance(value, Tensor) or value.dim():
        raise ConfigError(220, where, f"{_form(value)}, not a tensor without dimensions", fix)


def _form(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"has the shape {list(value.shape)}"
    return f"is a {type(value).__name__}"


def _without_nan(value: Tensor, count: int | Tensor | None) -> Tensor:
    """Return a value, or 0 if nothing counts: the mean of nothing is NaN."""
    if isinstance(count, Tensor):
        return torch.where(count > 0, value, 0.0)
    return torch.zeros_like(value) if count == 0 else value


def metrics_of(objective: object, totals: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the metrics that an objective makes of ``totals``. ConfigError C220 if it cannot."""
    if not totals:
        return {}
    if not isinstance(objective, MakesMetrics):
        what = f"has {', '.join(totals)}, and the objective makes no metrics of them"
        fix = "add a method metrics(totals), which returns numbers by name"
        raise ConfigError(220, "Outcome.totals", what, fix)
    metrics: Any = objective.metrics(totals)
    _check_dict("the objective's metrics", metrics)
    return {str(name): float(value) for name, value in metrics.items()}


@final
class PassResults:
    """The results of this rank's passes since the last report; ``objective`` makes metrics of them.

    Totals, which may be large, are added up at once; with ``drops_bad`` if the loss is finite.
    """

    def __init__(self, objective: object = None, drops_bad: bool = True) -> None:
        self._objective = objective
        self._drops_bad = drops_bad
        self._arrays: set[str] = set()  # the totals that are reported as they are
        self.clear()

    def clear(self) -> None:
        # Of each pass. An object per pass would take 1.2 us of a step more, to be read and freed.
        self._losses: list[Tensor] = []
        self._counts: list[int | Tensor] = []
        self._num_records = 0
        self._sums: dict[str, list[Tensor]] = {}
        self._places: list[PassPlace] = []
        self._totals: dict[str, Tensor] = {}  # float64, those of a resumed run, too
        self._before = Columns(NOTHING, NOTHING, {})  # of the run that this one continues

    def add(self, outcome: Outcome, num_records: int, weight: float, place: PassPlace) -> None:
        """Keep the result of a pass without its graph, or as nothing with a weight of 0.

        Does not wait for the device. ConfigError C220 for a result of another form than before.
        """
        arrays = check_outcome(outcome, num_records)
        if arrays:
            outcome.sums, outcome.totals = dict(outcome.sums), dict(outcome.totals)
        for name in arrays:
            if name in outcome.totals:
                what = "is an array in Outcome.sums and in Outcome.totals"
                raise ConfigError(220, f"Outcome.sums['{name}']", what, "rename one of them")
            outcome.totals[name] = outcome.sums.pop(name).detach()
            self._arrays.add(name)
        outcome.predictions = None  # nothing else needs them, and they may be large
        outcome.loss = outcome.loss.detach()
        if not weight:
            sums = {name: torch.zeros_like(value) for name, value in outcome.sums.items()}
            totals = {name: torch.zeros_like(value) for name, value in outcome.totals.items()}
            outcome = Outcome(torch.zeros_like(outcome.loss), sums, 0, totals)
            num_records = 0
        elif outcome.count is not None:
            outcome.loss = _without_nan(outcome.loss, outcome.count)
        if outcome.totals or self._totals:
            has = {name: tuple(value.shape) for name, value in outcome.totals.items()}
            had = {name: tuple(value.shape) for name, value in self._totals.items()}
            if self._losses and has != had:
                what = f"has {has}, and had {had} one pass before"
                raise ConfigError(220, "Outcome.totals", what, "return the same shapes every time")
            if has != had:  # of a resumed run, whose objective had others
                self._totals = {}
            for name, value in outcome.totals.items():
                new = value.detach().double()
                if self._drops_bad:
                    new = torch.where(outcome.loss.isfinite(), new, 0.0)
                if name in self._totals:
                    new += self._totals[name].to(new.device)  # of a resumed run, from the host
                self._totals[name] = new
            outcome.totals = {}
        if not self._losses:
            self._sums = {name: [] for name in outcome.sums}
        elif outcome.sums.keys() != self._sums.keys():
            has, had = (", ".join(names) or "nothing" for names in (outcome.sums, self._sums))
            what = f"has {has}, and had {had} one pass before"
            raise ConfigError(220, "Outcome.sums", what, "return the same keys every time")
        for name, value in outcome.sums.items():
            self._sums[name].append(value)
        self._losses.append(outcome.loss)
        self._counts.append(num_records if outcome.count is None else outcome.count)
        self._num_records += num_records
        self._places.append(place)

    def results(self, total: Callable[[Tensor], Tensor]) -> Results:
        """Return what the passes of all ranks come to. Reads the device once per name."""
        counts, losses, sums = self.columns()
        names = sorted(sums)
        own = [(losses * counts).sum(), *(sums[name].sum() for name in names), counts.sum()]
        mine = torch.stack([*own, torch.tensor(self._num_records, dtype=torch.float64)])
        totals = {name: self._totals[name].cpu() for name in sorted(self._totals)}
        shared = total(torch.cat([mine, *(value.flatten() for value in totals.values())]))
        *values, count, num_records = shared[: len(mine)].tolist()
        rest = shared[len(mine) :].split([value.numel() for value in totals.values()])
        for name, value in zip(totals, rest, strict=True):
            totals[name] = value.view(totals[name].shape)  # now of all ranks
        arrays = {name: totals.pop(name) for name in sorted(self._arrays & totals.keys())}
        means = [value / max(count, 1) for value in values]
        by_name = dict(zip(["loss", *names], means, strict=True))
        return Results(by_name | metrics_of(self._objective, totals), num_records, arrays)

    def columns(self) -> Columns:
        """Return the results in the order of the passes."""
        before = self._before
        if not self._losses:
            return before
        sums = dict(before.sums)
        for name, values in self._sums.items():
            is_flat = all(value.dim() == 1 for value in values)
            flat = values if is_flat else [value.reshape(-1) for value in values]
            sums[name] = torch.cat([sums.get(name, NOTHING), torch.cat(flat).cpu().double()])
        counts: list[Any] = list(self._counts)
        if on_device := [count for count in counts if isinstance(count, Tensor)]:
            read = iter(torch.stack(on_device).tolist())  # the device is read once
            counts = [next(read) if isinstance(count, Tensor) else count for count in counts]
        all_counts = torch.cat([before.counts, torch.tensor(counts, dtype=torch.float64)])
        losses = torch.cat([before.losses, torch.stack(self._losses).cpu().double()])
        return Columns(all_counts, losses, sums)

    def first_bad(self) -> PassPlace | None:
        """Return the place of this rank's first loss that is not finite. Reads the device once."""
        return next((self._places[number] for number in self._bad()), None)

    def drop_bad(self) -> None:
        """Count passes whose loss is not finite as nothing. Reads the device once."""
        for number in self._bad():
            self._losses[number] = torch.zeros_like(self._losses[number])
            self._counts[number] = 0
            for values in self._sums.values():
                values[number] = torch.zeros_like(values[number])

    def _bad(self) -> list[int]:
        if not self._losses:
            return []
        finite = torch.stack(self._losses).isfinite().tolist()
        return [number for number, is_finite in enumerate(finite) if not is_finite]

    def state_dict(self, gather: Callable[[Tensor], list[Tensor]]) -> dict[str, Any]:
        """Return the results of all ranks, which call this together.

        Those of a rank are float64 [n]: the number of its columns, their lengths, and their values.
        """
        counts, losses, sums = self.columns()
        names = sorted(sums)
        values = [counts, losses, *(sums[name] for name in names)]
        lengths = torch.tensor([len(values), *map(len, values)], dtype=torch.float64)
        totals: dict[str, Tensor] = {}
        for name in sorted(self._totals):
            value = self._totals[name].cpu()
            totals[name] = torch.stack(gather(value.flatten())).sum(0).view(value.shape)
        return {
            "ranks": gather(torch.cat([lengths, *values])),
            "sums": names,
            "totals": totals,
            "arrays": sorted(self._arrays & totals.keys()),
        }

    def load_state_dict(self, state: dict[str, Any], rank: int, world_size: int) -> None:
        """Take over saved results: with another number of ranks, those of several or of none."""
        self.clear()
        self._arrays = set(state["arrays"])
        self._totals = {name: value.clone() for name, value in state["totals"].items()}
        if rank:  # the first rank counts those of all ranks
            self._totals = {name: torch.zeros_like(own) for name, own in self._totals.items()}
        rows: list[Any] = []
        for flat in state["ranks"][rank::world_size]:
            num_columns = int(flat[0])
            row = flat[num_columns + 1 :].split(flat[1 : num_columns + 1].long().tolist())
            if len(row[0]):
                rows.append(row)
        if rows:
            counts, losses, *sums = map(torch.cat, zip(*rows, strict=True))
            by_name = dict(zip(sorted(state["sums"]), sums, strict=False))
            self._before = Columns(counts, losses, by_name)
