"""The training loop. It uses its parts through their contracts, so that each can be replaced."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any, final

from framework.contracts.batch import Batch, num_records
from framework.contracts.class_labels import raise_if_label
from framework.contracts.loader import Loader
from framework.contracts.parallel import on_any_rank
from framework.contracts.span import SpanSum
from framework.contracts.training import Moment, Outcome, Report, Sink
from framework.errors import ConfigError, PacelineError, words_of
from framework.system.rng import generator_state, kept_generators, set_generator_state
from framework.train import checkpoint, cuda_graph, noise
from framework.train.metrics import PassPlace, PassResults, Progress, next_due
from framework.train.parts import Parts, is_better, is_nan, named_means, validated
from framework.train.phases import Held, PhasedPasses
from framework.train.step import CountWeights, Passes, Stepper, all_finite, nonfinite_error
from framework.train.watching import RankWatch, TrainPace, Watching
from framework.train.weights import Average, read_best

LEAD = 4  # steps before a validation, when its first batches begin to be read
TOO_FEW = "Expected more than 1 value per channel"  # torch's batch norm, for a single record


@final
class Trainer:
    """A training loop over ``parts``: ``fit`` trains to the end, and ``epochs`` epoch by epoch."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._counts = CountWeights(parts.parallel, parts.optimizer, parts.sums_records)
        model = parts.parallel.unwrap(parts.model)
        own = (parts.optimizer, parts.schedule, parts.precision, parts.average, self._counts)
        self.stepper = Stepper(parts.plan, model, *own, parts.setter, parts.owned)
        self._position = lambda: (self.progress.scheduled, self._last_step)
        self._phased: PhasedPasses | None = None
        if parts.phases:
            self._phased = PhasedPasses(parts, self.stepper, self._set_rates)
        self._passes = self._make_passes()
        self.progress = Progress()
        # Means of the best validations, and ``step``: up to ``plan.keep_best``, the best first.
        self.bests: list[dict[str, float]] = []
        self._bests_before = self.bests  # stay the best if the new one cannot be saved
        self.val_means: dict[str, float] = {}  # of the latest validation; or named as NAME.loss
        self.spans = SpanSum()  # over all steps of this run
        self.pace = TrainPace()
        self.validate_s = 0.0
        self.stopped = False  # whether ``parts.stop`` ended the run before its last step
        self.ended = ""  # why a watcher ended the run before its last step
        self._splits = parts.splits()
        self._watching = parts.watching or Watching({}, parts.parallel)
        self._sinks: Sequence[Sink] = ()  # of rank 0 alone
        self._began: tuple[float, int] = (0.0, 0)  # when reports begin, and after which step
        self.ranks = RankWatch(parts.clock, parts.parallel)  # what all ranks measure
        self._pass_results = PassResults(parts.objective)
        self._last_step = 0
        self._next_due = 0  # the next step that reports, validates or saves

    @property
    def best(self) -> dict[str, float]:
        """The means of the best validation, and its ``step``; empty before the first."""
        return self.bests[0] if self.bests else {}

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.progress.total_steps(self.parts.plan, self.parts.train.num_steps)

    @property
    def spans_s(self) -> dict[str, float]:
        """Seconds by the name of each span, over all steps so far."""
        return {name: span.total_s for name, span in self.spans.whole.items()}

    def fit(self, sinks: Sequence[Sink] = ()) -> None:
        """Train to the last step, or until ``parts.stop`` returns True. Report to ``sinks``."""
        for _ in self.epochs(sinks):
            pass

    def epochs(self, sinks: Sequence[Sink] = ()) -> Iterator[dict[str, float]]:
        """Train one epoch per iteration, and yield the latest validation means after each."""
        self._begin_reports(sinks)
        if self.parts.plan.validate_first and not self.progress.step and not self.val_means:
            self._pause(validate=True, weights=True)
        try:
            while self.progress.step < self.total_steps and not self.stopped and not self.ended:
                self._epoch()
                yield self.val_means
        finally:
            for loader in (self.parts.train, *self._splits.values()):
                loader.expect(0, 0, 0)  # nothing more is read
        if self.stopped:  # only the resumed run will report these records
            self.pace.lap(self._pass_results.results(self.parts.parallel.total).num_records)
        self.pace.pause()
        self.spans.add(self.parts.clock.spans())  # since the last report
        status = "interrupted" if self.stopped else "finished"
        moment = self._moment(status=status, reason=self.ended)
        self._watching.call(lambda watcher: watcher.at_end, moment)

    def validate(self, sinks: Sequence[Sink] = ()) -> None:
        """Validate the current weights and save them. Do nothing without validation data."""
        if self._splits:
            self._begin_reports(sinks)
            self._save(self._validate(), weights=True)

    def test(self, splits: Mapping[str, Loader], sinks: Sequence[Sink] = ()) -> dict[str, float]:
        """Evaluate the best weights, or without validation the last ones, on data of their own.

        The model keeps these weights. All ranks call this together, after the last step. Return
        the means by name; those of several splits, such as ``test.clean``, as ``clean.loss``.
        """
        parts, stepper = self.parts, self.stepper
        self._begin_reports(sinks)
        best: dict[str, Any] | None = None
        if parts.checkpoints is not None and self.bests and parts.parallel.rank == 0:
            best = read_best(parts.checkpoints.folder)
        best = checkpoint.of_all_ranks(best, parts.parallel)[0]
        average = parts.average
        if best is not None:
            state = {"model": best["model"], "average": None, "optimizer": {"state": {}}}
            own = parts.parallel.shard_state(state, stepper.model, parts.optimizer)
            stepper.model.load_state_dict(own["model"])
            if parts.owned is not None:
                parts.owned.load_state_dict(best["objective"])
            average = None  # what was kept is the average
        results = self._evaluated(splits, average)
        for result in results:
            self._write(result)
        return named_means(results)

    def _begin_reports(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks
        self._began = time.perf_counter(), self.progress.step
        self._last_step = self.total_steps

    def _epoch(self) -> None:
        self._last_step = self.total_steps  # computed once an epoch, not at every step
        self._next_due = 0
        self.parts.switch_to_training()
        self.parts.clock.skip()
        self.pace.start()
        pass_results, progress = self._pass_results, self.progress
        steps_left = self._last_step - progress.step
        self.parts.train.expect(progress.epoch, progress.epoch_step, steps_left)
        micro_batches = self.parts.train.epoch(progress.epoch, progress.epoch_step)
        noise.key_noise(self.parts.seed, progress.epoch)
        batch: Batch = {}
        held: list[Held] = []  # the passes of a step with phases, until its last one
        try:
            for batch, weight, last in micro_batches:
                if self._phased is None:
                    outcome = self._passes(batch, weight, last)
                    place = PassPlace(progress.step + 1, batch.get("index"))
                    pass_results.add(outcome, num_records(batch), weight, place)
                else:
                    held.append((batch, weight))
                    if last:
                        self._take_phases(self._phased, held)
                        held.clear()
                if last and self._finish_step():
                    break
        except (IndexError, RuntimeError, ValueError) as error:
            where = f"step {progress.step + 1}"
            raise_if_label(error, batch, where)
            if words_of(error).startswith(TOO_FEW):
                what = f"batch norm cannot train on a pass over {num_records(batch)} record"
                fix = "set drop_last=True in the DataLoader, or last=drop for any other data"
                raise ConfigError(396, where, what, fix) from error
            raise
        finally:
            micro_batches.close()  # free the loader's threads before garbage collection

    def _take_phases(self, phased: PhasedPasses, held: Sequence[Held]) -> None:
        for outcome, (batch, weight) in zip(phased(held), held, strict=True):
            place = PassPlace(self.progress.step + 1, batch.get("index"))
            self._pass_results.add(outcome, num_records(batch), weight, place)

    def _set_rates(self) -> None:
        self.stepper.set_rates(self.progress, self._last_step)

    def _finish_step(self) -> bool:
        """Update the weights; report, validate and save if due. Return whether to end the epoch."""
        parts, progress, plan = self.parts, self.progress, self.parts.plan
        is_updated = self.stepper.updated is not None
        self.stepper.step(progress, self._last_step)
        if not is_updated:  # by a graph, within ``forward``, or by phases
            parts.clock.mark("optimizer")
        progress.step += 1
        progress.epoch_step += 1
        is_late = False
        if parts.checkpoints is not None and parts.parallel.rank == 0:  # which alone knows
            is_late = parts.checkpoints.is_late()
        stopped, late, ends = parts.parallel.agree(parts.stop(), is_late, self._watching.asks)
        if progress.step < self._next_due and not (stopped or late or ends):
            parts.clock.mark("report")
            return False
        thaws = () if parts.freeze is None else parts.freeze.steps
        self._next_due = next_due(plan, progress, parts.train.num_steps, self._last_step, thaws)
        ends_epoch = progress.epoch_step == parts.train.num_steps
        finished = progress.step == self._last_step
        if ends and not finished:
            self.ended = self._watching.agreed()
            finished = True
        self.stopped = stopped and not finished
        if progress.step % plan.report_every == 0 or ends_epoch or finished:
            self._report()
        parts.clock.mark("report")
        if ends_epoch:
            progress.epoch += 1
            progress.epoch_step = 0
        validate = finished or plan.validates(progress.step, ends_epoch)
        weights = validate or self.stopped
        if ends_epoch and plan.save_epochs is not None:
            weights = weights or progress.epoch % plan.save_epochs == 0
        if weights or late or plan.saves(progress.step):
            self._pause(validate, weights)
        if parts.freeze is not None and progress.step in parts.freeze.steps:
            self._begin_passes()
        if self._splits:
            self._expect_validation()
        return ends_epoch or finished or self.stopped or bool(self.ended)

    def _expect_validation(self) -> None:
        """Let the first validation set be read if a validation is near."""
        step, num_steps = self.progress.step, self.parts.train.num_steps
        due = step + num_steps - self.progress.epoch_step % num_steps
        if (every := self.parts.plan.validate_every) is not None:
            due = (step // every + 1) * every
        due = min(due, self._last_step)
        if step < due - LEAD:
            self._next_due = min(self._next_due, due - LEAD)
        elif step < due:
            loader = next(iter(self._splits.values()))
            loader.expect(0, 0, loader.num_steps)

    def _pause(self, validate: bool, weights: bool) -> None:
        """Save, and first validate if ``validate``. The time does not count as training."""
        self.pace.pause()
        validate = validate and bool(self._splits)
        best = validate and self._validate()
        if validate:
            moment = self._moment(metrics=self.val_means, is_best=best)
            self._watching.call(lambda watcher: watcher.after_validation, moment)
            reason = self._watching.agreed()
            if reason and not self.ended and self.progress.step < self._last_step:
                self.ended = reason  # the run ends after this step
                self.stopped = False
        self._save(best, weights)
        self.pace.resume()
        self.parts.clock.skip()

    def _begin_passes(self) -> None:
        """Train what is not frozen after the present step. Steps are captured anew."""
        if self.parts.freeze is not None:
            model = self.parts.freeze.move_to(self.progress.step, self.parts.model)
            self.parts = replace(self.parts, model=model)
        self._passes = self._make_passes()
        self.parts.switch_to_training()
        self.parts.clock.skip()

    def _make_passes(self) -> Callable[[Batch, float, bool], Outcome]:
        parts = self.parts
        if self._phased is not None:
            self._phased.watch()
        else:
            self._counts.watch(parts.model)
        own = (parts.model, parts.objective, parts.parallel, parts.precision)
        passes = Passes(*own, self._counts, parts.clock.mark)
        if parts.recorder is None:
            return passes
        return cuda_graph.GraphedPasses(passes, self.stepper, parts.recorder, self._position)

    def _moment(self, **facts: Any) -> Moment:
        step, epoch = self.progress.step, self.progress.epoch_number
        return Moment(step, epoch, self.pace.total_s, self._watching.run_dir, **facts)

    def _report(self) -> None:
        if self.parts.plan.skip_bad:
            self._pass_results.drop_bad()
        means, count, arrays = self._pass_results.results(self.parts.parallel.total)
        if not math.isfinite(means["loss"]):
            raise self._nonfinite_error(f"the loss is {means['loss']}")
        # the next report includes the time of writing this one
        records_per_s = self.pace.lap(count)
        self._pass_results.clear()
        if count:
            spans = self.parts.clock.spans()
            self.spans.add(spans)
            ranks = self.ranks.take(spans)
            of_split = ("train", 0, 0, means, records_per_s, spans)
            report = self._write(Report(*of_split, arrays=arrays, ranks=ranks))
            self._watching.call(lambda own: own.after_report, self._moment(report=report))

    def _nonfinite_error(self, what: str) -> PacelineError:
        what = f"{what} at learning rate {self.stepper.rate:g}"
        bad = self._pass_results.first_bad()
        return nonfinite_error(what, self.progress.step, bad, self.parts.parallel)

    def _write(self, results: Report) -> Report:
        """Write a report with the results of a split, and return it."""
        progress, identity = self.progress, self.parts.train.identity
        began_at, first_step = self._began
        step_s = (time.perf_counter() - began_at) / max(1, progress.step - first_step)
        epoch_left = 0  # between two epochs
        if progress.epoch_step:
            done = progress.epoch_step * identity["batch_size"]
            if "steps" in identity:  # batches of several sizes, which come in any order
                done = identity["records"] * progress.epoch_step // identity["steps"]
            epoch_left = max(0, identity["records"] - done)
        report = replace(
            results,
            step=progress.step,
            epoch=progress.epoch_number,
            learning_rate=self.stepper.rate,
            rates=self.stepper.rates_by_name,
            epoch_left=epoch_left,
            left_s=step_s * (self._last_step - progress.step) if progress.step else None,
            skipped=progress.step - progress.scheduled,
        )
        if self._sinks:
            # A sink may draw random numbers, which must not change those that rank 0 trains with.
            with kept_generators(self.parts.parallel.device):
                for sink in self._sinks:
                    sink.write(report)
        return report

    def _validate(self) -> bool:
        """Validate the model, and return whether the result is the best so far."""
        parts, start = self.parts, time.perf_counter()
        results = self._evaluated(self._splits, parts.average)
        parts.switch_to_training()
        means = named_means(results)
        self._bests_before, bests = self.bests, [*self.bests]
        olds = [*bests, {}]  # any validation is better than none
        own = parts, self._splits, means
        place = next(number for number, old in enumerate(olds) if is_better(*own, old))
        if place < parts.plan.keep_best:
            bests.insert(place, {**means, "step": self.progress.step})
            self.bests = bests[: parts.plan.keep_best]
        for result in results:
            self._write(replace(result, best=self.best))
        losses = [name for name in means if name == "loss" or name.endswith(".loss")]
        # unless the previous validation was NaN, too
        names = [n for n in losses if is_nan(means, n) and not is_nan(self.val_means, n)]
        if names:
            what = f"the {', '.join(names)} of the validation after step {self.progress.step}"
            fix = "look at the validation data, or lower optim.lr"
            parts.say(f"warning: {what} is NaN; {fix}")
        self.val_means = means
        self.stepper.follow(self.val_means, parts.parallel)
        self.validate_s += time.perf_counter() - start
        return place == 0

    def _evaluated(self, splits: Mapping[str, Loader], average: Average | None) -> list[Report]:
        """Return the results of the model, or of its average, on each split."""
        with nullcontext() if average is None else average.applied():
            return validated(self.parts, splits, self.stepper.model)

    def _save(self, best: bool, weights: bool) -> None:
        """Save the state, and ``weights`` alone. N101 and nothing saved if one is not finite."""
        parts = self.parts
        if parts.checkpoints is None:
            return
        is_bad = not all_finite(self.stepper.model, self.stepper.infinite)
        if on_any_rank(parts.parallel, is_bad):  # their buffers may differ
            raise self._nonfinite_error("a weight is NaN or infinite")
        state = self.state_dict()
        kept = parts.parallel.gather_state(self.stepper.weights()) if weights else None
        is_kept = self.bests is not self._bests_before  # as one of the best
        is_lost = False
        if parts.parallel.rank == 0:
            for sink in self._sinks:
                sink.flush()
            ends = self.stopped or bool(self.ended) or self.progress.step == self._last_step
            ranked = [int(own["step"]) for own in self.bests if parts.plan.keep_best > 1]
            saved = parts.checkpoints.save(self.progress.step, state, kept, best, ends, ranked)
            is_lost = is_kept and not saved.is_best
            self._watching.call(lambda own: own.after_save, self._moment(path=saved.path))
        # Without this, the other ranks would wait for rank 0 in their next step, and a slow save
        # would end the run after ``parallel.timeout_s``.
        parts.parallel.wait()
        if is_kept and on_any_rank(parts.parallel, is_lost):
            self.bests = self._bests_before
        self._bests_before = self.bests

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs. All ranks call this together."""
        if self.parts.plan.skip_bad:
            self._pass_results.drop_bad()
        parallel, sampler = self.parts.parallel, self.parts.train.sampler
        place = self.progress.epoch, self.progress.epoch_step
        return {
            **parallel.gather_state(self.stepper.state_dict()),
            "objective": {} if self.parts.owned is None else self.parts.owned.state_dict(),
            "progress": asdict(self.progress),
            "order": self.parts.train.identity,
            "sampler": None if sampler is None else sampler.state(*place),
            "best": self.best,
            "bests": self.bests,
            "val": self.val_means,
            "pending": self._pass_results.state_dict(parallel.gather),
            "generators": parallel.gather(generator_state(parallel.device)),
            "trained_s": self.pace.total_s,
            "ended": self.ended,
            "watching": self._watching.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``. With more ranks than it had, some share a generator state."""
        parallel, stepper = self.parts.parallel, self.stepper
        stepper.load_state_dict(parallel.shard_state(state, stepper.model, stepper.optimizer))
        if self.parts.owned is not None:
            self.parts.owned.load_state_dict(state.get("objective", {}))
        self.progress = Progress(**state["progress"])
        if self.progress.epoch_step >= self.parts.train.num_steps:  # has become shorter since
            self.progress.epoch += 1
            self.progress.epoch_step = 0
        if (sampler := self.parts.train.sampler) is not None:
            sampler.load(state.get("sampler"), self.progress.epoch, self.progress.epoch_step)
        bests = [dict(own) for own in state.get("bests", [state["best"]]) if own]
        self.bests = bests[: self.parts.plan.keep_best]
        self._bests_before = self.bests
        self.val_means = dict(state["val"])
        if self.best and self._splits and self.parts.best is None:
            is_better(self.parts, self._splits, self.best, self.best)  # KeyError for a lost mean
        self._pass_results.load_state_dict(state["pending"], parallel.rank, parallel.world_size)
        self.pace.before_s = state["trained_s"]
        self.ended = state["ended"]
        self._watching.load_state_dict(state["watching"])
        generators = state["generators"]
        set_generator_state(generators[parallel.rank % len(generators)], parallel.device)
        self._begin_passes()
