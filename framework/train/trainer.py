"""The Trainer: the sequence of a run, and nothing else. It sees contracts only; every variation is another part."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, final

import torch
from torch import nn

from framework.contracts.batch import Batch
from framework.contracts.loader import Clock, Loader
from framework.contracts.parallel import Parallel, Precision
from framework.contracts.span import Span, merged
from framework.contracts.training import Checkpoints, Objective, Outcome, Report, Schedule, Sink
from framework.errors import PacelineError
from framework.system.rng import generator_state, kept_generators, set_generator_state
from framework.train.cuda_graph import GraphedPasses, Recorder
from framework.train.ema import Average
from framework.train.evaluate import evaluate
from framework.train.metrics import Progress, Tally, TrainPlan
from framework.train.nonfinite import all_finite, gone_wrong
from framework.train.passes import Passes
from framework.train.step import Stepper


def _never() -> bool:
    return False


@final
class Trainer:
    """Trains ``model`` on ``train``, evaluates on ``val``. Only ``epochs``, ``fit`` and ``validate`` are for callers.

    All parts arrive ready: the model on its device and wrapped by ``parallel``, the optimizer over its parameters.
    ``stop`` is asked after every step; ranks agree on the answer. ``recorder``: captures steps; ``say`` takes a note where it cannot.
    """

    def __init__(
        self,
        plan: TrainPlan,
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
        recorder: Recorder | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        self.plan, self.model, self.objective = plan, model, objective
        self.train, self.val, self.parallel, self.precision = train, val, parallel, precision
        self.clock, self.val_clock, self.sinks, self.checkpoints = (
            clock,
            val_clock,
            sinks,
            checkpoints,
        )
        self.stepper = Stepper(
            plan, parallel.unwrap(model), optimizer, schedule, precision, average
        )
        self.stop = stop
        self.passes: Callable[[Batch, float, bool], Outcome] = Passes(
            model, objective, parallel, precision, clock.mark
        )
        if recorder is not None:
            self.passes = GraphedPasses(self.passes, self.stepper, recorder, self._set_rates, say)
        self.progress = Progress()
        self.best: dict[str, float] = {}
        self.val_means: dict[str, float] = {}
        self.spans: dict[str, Span] = {}
        self.train_s = self.validate_s = self.num_records = 0.0
        self.stopped = False
        self._tally = Tally()
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
        if self.stopped:
            self._pace(
                self._tally.means(self.parallel.total)[1]
            )  # of what the next run will report
        self._lap()  # the last report's own time

    def validate(self) -> None:
        """Validate the weights as they are, and save them with what was found. Nothing happens without validation data."""
        if self.val is not None:
            self._last_step = self.total_steps
            self._save(self._validate(self.val), weights=True)

    def _set_rates(self) -> None:
        self.stepper.set_rates(self.progress, self._last_step)

    def _epoch(self) -> None:
        self._last_step = self.total_steps  # known here, not asked at every step
        self.model.train()
        self.clock.skip()
        self._reported_at = time.perf_counter()
        micro_batches = self.train.epoch(self.progress.epoch, self.progress.epoch_step)
        try:
            for batch, weight, last in micro_batches:
                self._tally.add(
                    self.passes(batch, weight, last),
                    weight > 0,
                    self.progress.step + 1,
                    batch.get("index"),
                )
                if last and self._finish_step():
                    break
        finally:
            micro_batches.close()  # frees the loader's threads now, not when it is collected

    def _finish_step(self) -> bool:
        """Step, count, and whatever is due after this step. True: the epoch ends here."""
        progress, plan = self.progress, self.plan
        self.stepper.step(progress, self._last_step)
        self.clock.mark("optimizer")
        progress.step += 1
        progress.epoch_step += 1
        ends_epoch = progress.epoch_step == self.train.num_steps
        finished = progress.step == self._last_step
        late = (
            self.checkpoints is not None and self.parallel.rank == 0 and self.checkpoints.is_late()
        )
        stopped, late = self.parallel.agree(self.stop(), late)
        self.stopped = stopped and not finished
        if progress.step % plan.report_every == 0 or ends_epoch or finished:
            self._report()
        self.clock.mark("report")
        if ends_epoch:
            progress.epoch, progress.epoch_step = progress.epoch + 1, 0
        validate = finished or (
            ends_epoch if plan.validate_every is None else progress.step % plan.validate_every == 0
        )
        save = late or (plan.save_every is not None and progress.step % plan.save_every == 0)
        if not (validate or ends_epoch or self.stopped or save):
            return False
        paused_at = time.perf_counter()
        best = validate and self.val is not None and self._validate(self.val)
        self._save(best, weights=validate or ends_epoch or self.stopped)
        self._reported_at += (
            time.perf_counter() - paused_at
        )  # neither validating nor saving is training
        self.clock.skip()
        return ends_epoch or finished or self.stopped

    def _report(self) -> None:
        tally = self._tally
        if self.plan.skip_bad:
            tally.drop_bad()
        found, count = tally.means(self.parallel.total)
        if not math.isfinite(found["loss"]):
            raise self._gone_wrong(f"the loss is {found['loss']}")
        pace = self._pace(count)
        tally.clear()
        if count:
            self._write("train", found, pace, self._lap())

    def _pace(self, count: float) -> float:
        """Records per second since the last report, which are also counted for the whole run; those of the run before it are neither."""
        now = time.perf_counter()
        wall_s, self._reported_at = (
            now - self._reported_at,
            now,
        )  # writing the report is part of the next one's time
        fresh = count - self._tally.carried
        self.train_s += wall_s
        self.num_records += fresh
        return fresh / wall_s

    def _gone_wrong(self, what: str) -> PacelineError:
        return gone_wrong(
            f"{what} at learning rate {self.stepper.rate:g}",
            self.progress.step,
            self._tally.first_bad(),
            self.parallel,
        )

    def _lap(self) -> dict[str, Span]:
        spans = self.clock.spans()
        self.spans = merged(self.spans, spans)
        return spans

    def _write(
        self, split: str, found: dict[str, float], records_per_s: float, spans: dict[str, Span]
    ) -> None:
        step, skipped = self.progress.step, self.progress.step - self.progress.scheduled
        epoch = -(-step // self.train.num_steps)  # counted from 1
        left = max(
            0,
            self.train.identity["records"]
            - self.progress.epoch_step * self.train.identity["batch_size"],
        )
        left_s = (
            (time.perf_counter() - self._began_at)
            / max(1, step - self._first_step)
            * (self._last_step - step)
        )
        report = Report(
            split,
            step,
            epoch,
            found,
            records_per_s,
            spans,
            self.stepper.rate,
            left,
            left_s,
            skipped=skipped,
        )
        if (
            self.sinks
        ):  # of rank 0 alone: what one draws, to choose an image, say, must not set it apart
            with kept_generators(self.parallel.device):
                for sink in self.sinks:
                    sink.write(report)

    def _validate(self, val: Loader) -> bool:
        """Whether it is the best so far."""
        start = time.perf_counter()
        with self.stepper.averaged():
            self.val_means, count = evaluate(
                self.stepper.model,
                val,
                self.objective,
                self.precision,
                self.val_clock,
                self.parallel,
            )
        self.model.train()
        wall_s = time.perf_counter() - start
        self._write("val", self.val_means, count / wall_s, self.val_clock.spans())
        best = not self.best or self.objective.better(self.val_means, self.best)
        if best:
            self.best = {**self.val_means, "step": self.progress.step}
        self.validate_s += time.perf_counter() - start
        return best

    def _save(self, best: bool, weights: bool) -> None:
        """Save the state, and the ``weights`` to use; never such as are no numbers. The last save of a run must succeed."""
        if self.checkpoints is None:
            return
        if not all_finite(self.stepper.model, self.stepper.infinite):
            raise self._gone_wrong("the weights are no longer numbers")
        state = self.state_dict()
        kept = self.parallel.gather_state(self.stepper.weights()) if weights else None
        if self.parallel.rank == 0:
            for sink in self.sinks:
                sink.flush()
            ends = self.stopped or self.progress.step == self._last_step
            self.checkpoints.save(self.progress.step, state, kept, best, ends)

    def state_dict(self) -> dict[str, Any]:
        """All that a later run needs to go on: tensors and plain values only. Asked on all ranks at once."""
        if self.plan.skip_bad:
            self._tally.drop_bad()
        return {
            **self.parallel.gather_state(self.stepper.state_dict()),
            "progress": asdict(self.progress),
            "order": self.train.identity,
            "best": self.best,
            "val": self.val_means,
            "pending": self._tally.state_dict(self.parallel.gather),
            "generators": self.parallel.gather(generator_state(self.parallel.device)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken. On another number of ranks, each draws from another's generators."""
        self.stepper.load_state_dict(
            self.parallel.shard_state(state, self.stepper.model, self.stepper.optimizer)
        )
        self.progress = Progress(**state["progress"])
        self.best, self.val_means = dict(state["best"]), dict(state["val"])
        self._tally.load_state_dict(state["pending"], self.parallel.rank, self.parallel.world_size)
        generators = state["generators"]
        set_generator_state(generators[self.parallel.rank % len(generators)], self.parallel.device)
