"""The Trainer: the sequence of a run, and nothing else. It sees contracts only; every variation is another part."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from torch import nn

from framework.average import Average
from framework.batch import Batch
from framework.contracts import Checkpoints, Clock, Loader, Objective, Outcome, Parallel, Precision, Report, Schedule, Sink
from framework.errors import NumericError
from framework.span import Span, merged
from framework.tally import Progress, detached, means


@dataclass(frozen=True)
class Plan:
    """How long, and how often. ``max_steps`` and ``validate_every`` (None: at the end of every epoch) are optimizer steps."""

    epochs: int
    max_steps: int | None = None
    report_every: int = 50
    validate_every: int | None = None
    clip_norm: float | None = None


def _never() -> bool:
    return False


@final
class Trainer:
    """Trains ``model`` on ``train``, evaluates on ``val``. Only ``epochs`` and ``fit`` are for callers.

    All parts arrive ready: the model on its device and wrapped by ``parallel``, the optimizer over its parameters.
    ``stop`` is asked after every step; ranks agree on the answer.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        model: nn.Module,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        train: Loader,
        val: Loader | None,
        parallel: Parallel,
        precision: Precision,
        clock: Clock,
        val_clock: Clock,
        sinks: Sequence[Sink] = (),
        checkpoints: Checkpoints | None = None,
        average: Average | None = None,
        stop: Callable[[], bool] = _never,
    ) -> None:
        self.plan, self.model, self.objective, self.optimizer, self.schedule = plan, model, objective, optimizer, schedule
        self.train, self.val, self.parallel, self.precision = train, val, parallel, precision
        self.clock, self.val_clock, self.sinks, self.checkpoints = clock, val_clock, sinks, checkpoints
        self.average, self.stop = average, stop
        self.progress = Progress()
        self.best: dict[str, float] = {}
        self.val_means: dict[str, float] = {}
        self.spans: dict[str, Span] = {}
        self.train_s = self.validate_s = self.num_records = 0.0
        self.stopped = False
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._pending: list[Outcome] = []
        self._reported_at = time.perf_counter()
        self._began_at, self._first_step, self._last_step = self._reported_at, 0, 0

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        steps = self.plan.epochs * self.train.num_steps
        return steps if self.plan.max_steps is None else min(steps, self.plan.max_steps)

    @property
    def spans_s(self) -> dict[str, float]:
        """Seconds of all steps of this run, by span."""
        return {name: span.total_s for name, span in self.spans.items()}

    def fit(self) -> None:
        """Run to the end, or until ``stop`` says so."""
        for _ in self.epochs():
            pass

    def epochs(self) -> Iterator[dict[str, float]]:
        """Run epoch by epoch, yielding the newest validation means. To stop early, stop iterating."""
        self._began_at, self._first_step = time.perf_counter(), self.progress.step
        while self.progress.step < self.total_steps and not self.stopped:
            self._epoch()
            yield self.val_means
        self._lap()  # the last report's own time

    def _epoch(self) -> None:
        self._last_step = self.total_steps  # known here, not asked at every step
        self.model.train()
        self.clock.skip()
        self._reported_at = time.perf_counter()
        micro_batches = self.train.epoch(self.progress.epoch, self.progress.epoch_step)
        try:
            for batch, weight, last in micro_batches:
                self._forward_backward(batch, weight, last)
                if last and self._finish_step():
                    break
        finally:
            micro_batches.close()  # frees the loader's threads now, not when it is collected

    def _forward_backward(self, batch: Batch, weight: float, last: bool) -> None:
        with self.parallel.accumulate(self.model, last):
            with self.precision.autocast():
                outcome = self.objective(self.model, batch)
            self.clock.mark("forward")
            self.precision.backward(outcome.loss if weight == 1.0 else outcome.loss * weight)
            self.clock.mark("backward")
        self._pending.append(detached(outcome, counts=weight > 0))

    def _finish_step(self) -> bool:
        """Step, count, and whatever is due after this step. True: the epoch ends here."""
        progress, plan = self.progress, self.plan
        self._set_rate()
        if self.precision.step(self.optimizer, plan.clip_norm):
            progress.scheduled += 1
            if self.average is not None:
                self.average.update(self.parallel.unwrap(self.model))
        self.optimizer.zero_grad(set_to_none=True)
        self.clock.mark("optimizer")
        progress.step += 1
        progress.epoch_step += 1
        ends_epoch = progress.epoch_step == self.train.num_steps
        finished = progress.step == self._last_step
        self.stopped = self.parallel.agree(self.stop()) and not finished
        if progress.step % plan.report_every == 0 or ends_epoch or finished or self.stopped:
            self._report()
        self.clock.mark("report")
        if ends_epoch:
            progress.epoch, progress.epoch_step = progress.epoch + 1, 0
        due = finished or (ends_epoch if plan.validate_every is None else progress.step % plan.validate_every == 0)
        if not (due or ends_epoch or self.stopped):
            return False
        paused_at = time.perf_counter()
        if due:
            self._validate()
        else:
            self._save(best=False)
        self._reported_at += time.perf_counter() - paused_at  # neither validating nor saving is training
        self.clock.skip()
        return ends_epoch or finished or self.stopped

    def _set_rate(self) -> None:
        """The rate of the step about to be taken; a skipped step takes no place in the schedule."""
        factor = self.schedule(self.progress.scheduled, self._last_step)
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor

    def _report(self) -> None:
        pending, self._pending = self._pending, []
        found, count = means(pending, self.parallel.total)
        if not math.isfinite(found["loss"]):
            what = f"the loss is {found['loss']} at learning rate {self.optimizer.param_groups[0]['lr']:g}"
            raise NumericError(101, f"step {self.progress.step}", what, "lower optim.lr, set clip_norm, or look at the data")
        now = time.perf_counter()
        wall_s, self._reported_at = now - self._reported_at, now  # writing the report is part of the next one's time
        self.train_s += wall_s
        self.num_records += count
        self._write("train", found, count / wall_s, self._lap())

    def _lap(self) -> dict[str, Span]:
        spans = self.clock.spans()
        self.spans = merged(self.spans, spans)
        return spans

    def _write(self, split: str, found: dict[str, float], records_per_s: float, spans: dict[str, Span]) -> None:
        step, rate = self.progress.step, self.optimizer.param_groups[0]["lr"]
        epoch = -(-step // self.train.num_steps)  # counted from 1
        left = max(0, self.train.identity["records"] - self.progress.epoch_step * self.train.identity["batch_size"])
        left_s = (time.perf_counter() - self._began_at) / max(1, step - self._first_step) * (self._last_step - step)
        report = Report(split, step, epoch, found, records_per_s, spans, rate, left, left_s)
        for sink in self.sinks:
            sink.write(report)

    def _validate(self) -> None:
        if self.val is None:
            self._save(best=False)
            return
        start = time.perf_counter()
        self.val_means, count = self._evaluate(self.val)
        wall_s = time.perf_counter() - start
        self._write("val", self.val_means, count / wall_s, self.val_clock.spans())
        best = not self.best or self.objective.better(self.val_means, self.best)
        if best:
            self.best = {**self.val_means, "step": self.progress.step}
        self.validate_s += time.perf_counter() - start
        self._save(best)

    @torch.no_grad()
    def _evaluate(self, loader: Loader) -> tuple[dict[str, float], float]:
        model = self.average.model if self.average is not None else self.parallel.unwrap(self.model)
        model.eval()
        outcomes: list[Outcome] = []
        self.val_clock.skip()
        for batch, weight, _ in loader.epoch(0):
            with self.precision.autocast():
                outcome = self.objective(model, batch)
            self.val_clock.mark("forward")
            outcomes.append(detached(outcome, counts=weight > 0))
            self.val_clock.mark("report")
        model.train(self.average is None)
        return means(outcomes, self.parallel.total)

    def _save(self, best: bool) -> None:
        if self.checkpoints is None or self.parallel.rank != 0:
            return
        model = self.parallel.unwrap(self.model) if self.average is None else self.average.model
        self.checkpoints.save(self.state_dict(), model.state_dict(), best)

    def state_dict(self) -> dict[str, Any]:
        """All that a later run needs to go on: tensors and plain values only."""
        return {
            "model": self.parallel.unwrap(self.model).state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "precision": self.precision.state_dict(),
            "progress": asdict(self.progress),
            "order": self.train.identity,
            "best": self.best,
            "val": self.val_means,
            "rng": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken."""
        self.parallel.unwrap(self.model).load_state_dict(state["model"])
        if self.average is not None:
            self.average.load_state_dict(state["model"] if state["average"] is None else state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.precision.load_state_dict(state["precision"])
        self.progress = Progress(**state["progress"])
        self.best, self.val_means = dict(state["best"]), dict(state["val"])
        torch.set_rng_state(state["rng"])
