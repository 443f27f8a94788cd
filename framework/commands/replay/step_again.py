"""Take a step of a run again: from the nearest saved state, exactly as the run took it."""

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from framework import errors
from framework.commands.replay import watched_steps
from framework.config.assemble import Assembly
from framework.config.init_weights import DIGEST, with_saved_digest
from framework.config.predict_images import class_name
from framework.config.resume import FOLLOWS, read_config, restore
from framework.config.targets import Config, check_targets, data_name, with_folds, with_functions
from framework.config.training_parts import training_parts
from framework.contracts.prediction import Predicts
from framework.contracts.training import Objective, Report
from framework.measure.host import threads_per_rank
from framework.system.run_dir import ENDED, FACTS, REPORTS, SUMMARY, lines_of, number, read_object
from framework.train.checkpoint import Damaged, read_state, saved_steps
from framework.train.trainer import Trainer

OTHER_RANK = 104  # of the error of ranks that did not meet the loss that ended a run
ELSEWHERE = "replay it where it ran: on another machine other bits come out"


class LoggedReport(NamedTuple):
    """A report of training on the steps ``first`` to ``last``.

    ``skipped`` counts the steps of the run so far that left the weights unchanged.
    """

    first: int
    last: int
    means: dict[str, float]
    skipped: int


class StepSearch(NamedTuple):
    """A search for a step within one report: for the highest ``metric`` if ``sign`` is 1.

    Without a metric, the first step that is not finite is searched.
    """

    first: int
    last: int
    metric: str = ""
    sign: int = 1

    def badness(self, means: Mapping[str, float]) -> float:
        """Return how bad a step or report is. A mean that is no number is the worst."""
        value = self.sign * means.get(self.metric, math.nan)
        return math.inf if math.isnan(value) else value


class RunHistory(NamedTuple):
    """The steps of a run."""

    run_dir: Path
    facts: Mapping[str, Any]  # what ``run.json`` holds
    states: Mapping[int, Path]  # the file of each saved state by its step
    reports: Sequence[LoggedReport]  # of training, in their order
    last_step: int  # the last step that the run is known to have taken
    diverged: bool  # whether a loss, a weight or gradients that were not finite ended the run

    @property
    def starts(self) -> list[int]:
        """The steps at which the run was begun and resumed."""
        return [part["step"] for part in self.facts.get("starts", [])]

    def config_of(self, step: int) -> Config:
        """Return the configuration with which a step was taken, with all ranks on this host."""
        starts = [part for part in self.facts.get("starts", []) if part["step"] < step]
        config = read_config(self.run_dir, starts[-1]["config"] if starts else None).config
        parallel = config["parallel"]
        if "num_processes" in parallel:
            ranks = parallel["num_processes"] * parallel["num_nodes"]
            if starts and starts[-1].get("ranks"):  # as torchrun or srun started them
                ranks = starts[-1]["ranks"]
            if "virtual_ranks" in parallel:  # one process repeats their bits
                ranks = 1
            parallel = {**parallel, "num_processes": ranks, "num_nodes": 1, "max_restarts": 0}
        return {**config, "parallel": parallel}


def read_history(run_dir: Path) -> RunHistory:
    """Read what is known of a run's steps."""
    reports: list[LoggedReport] = []
    last = 0
    with suppress(OSError):
        for line in lines_of(run_dir / REPORTS):
            if line.get("split") == "train" and line["step"] > last:
                keys = list(line)  # those between the split and the learning rate are means
                names = keys[keys.index("split") + 1 : keys.index("lr")]
                values = {name: number(line[name]) for name in names}
                means = {name: value for name, value in values.items() if value is not None}
                reports.append(LoggedReport(last + 1, line["step"], means, line.get("skipped", 0)))
                last = line["step"]
    states = saved_steps(run_dir)
    ended = read_object(run_dir / ENDED)
    counts = (ended.get("step"), read_object(run_dir / SUMMARY).get("steps"))
    last_step = max([last, *states, *(count or 0 for count in counts)])
    diverged = ended.get("code") == errors.NumericError.exit_code
    return RunHistory(run_dir, read_object(run_dir / FACTS), states, reports, last_step, diverged)


def choose_step(text: str, history: RunHistory) -> StepSearch:
    """Return the step that ``step=`` names, or the report in which to search it.

    ConfigError C340 (another text), C341 (a step not taken), C342 (an unknown metric), C343 (no
    report to search).
    """
    where, reports = f"step = {text}", history.reports
    if text.isdecimal() and int(text):
        if int(text) > history.last_step:
            what = f"the run has taken {history.last_step} steps"
            raise errors.ConfigError(341, where, what, "give one of them")
        return StepSearch(int(text), int(text))
    if text == "nan":  # the first report that skipped a step, or the steps after the last report
        skipped = reported = 0
        for report in reports:
            if report.skipped > skipped:
                return StepSearch(report.first, report.last)
            skipped, reported = report.skipped, report.last
        if not history.diverged:
            what = "every reported step of the run was finite"
            raise errors.ConfigError(343, where, what, "give the number of a step, or max:loss")
        # A run that skipped too many steps ends before it counts the last one.
        return StepSearch(reported + 1, max(history.last_step, reported) + 1)
    match = re.fullmatch("(max|min):(.+)", text)
    if match is None:
        fix = "give a number, max:METRIC, min:METRIC or nan"
        raise errors.ConfigError(340, where, "names no step", fix)
    if not reports:
        what = "the run has no reports in metrics.jsonl"
        raise errors.ConfigError(343, where, what, "give the number of a step")
    names = list(dict.fromkeys(name for report in reports for name in report.means))
    if match[2] not in names:
        what = f"no report of training has this metric{errors.did_you_mean(match[2], names)}"
        raise errors.ConfigError(342, where, what, f"choose {errors.listed(names)}")
    search = StepSearch(0, 0, match[2], 1 if match[1] == "max" else -1)
    worst = max(reports, key=lambda report: search.badness(report.means))
    return search._replace(first=worst.first, last=worst.last)


@final
class RunAgain:
    """A run one of whose steps can be taken again; a Sink that compares reports on the way.

    All ranks call the same methods. ``tell`` is called after every step with its number and that of
    the last. CheckpointError K120 for no run, ConfigError C340 to C343 if there is no such step.
    """

    def __init__(
        self,
        run_dir: Path,
        text: str,
        allowed: Sequence[str] = (),
        note: Callable[[str], None] = lambda _: None,
        tell: Callable[[int, int], None] = lambda *_: None,
    ) -> None:
        read_config(run_dir)
        self.history = read_history(run_dir)
        self.search = choose_step(text, self.history)
        self._where = f"step = {text}"
        self._allowed = tuple(allowed)
        self._note = note
        self._tell = tell
        self._logged = {report.last: report.means for report in self.history.reports}
        self._repeated: set[int] = set()  # last steps of reports that came out equal, bit by bit
        self._differing: set[int] = set()  # and of those that did not
        self._begin = 0  # the step of the state
        self._ended = ""  # the error that ended the run, if it was met

    def take(self) -> tuple[dict[str, Any], list[watched_steps.WatchedPass]]:
        """Find the step, and take it again between its neighbors.

        ConfigError C343 if it is not found or not taken, DataError D340 if the data has changed.

        Returns:
            What ``replay.json`` holds, and the forward passes of the step. The records stand with
            the highest loss first, each with its place among those of the passes.
        """
        torch.set_num_threads(threads_per_rank())
        start, search = time.perf_counter(), self.search
        step = search.first
        if search.last > search.first:
            facts = list(self._walk(search.first, search.last, None)[0].facts.values())
            bad = [own for own in facts if not own.finite]
            if search.metric:
                step = max(facts, key=lambda own: search.badness(own.means)).step
            elif bad:
                step = bad[0].step
            else:
                what = f"steps {search.first} to {search.last} are all finite here"
                raise errors.ConfigError(343, self._where, what, ELSEWHERE)
        watch, records = self._walk(max(step - 1, 1), step + 1, step)
        if watch.failure:
            self._note(f"note: the losses of single records are not known ({watch.failure})")
        losses = [record["loss"] for record in records]
        order = [math.inf if loss is None or math.isnan(loss) else loss for loss in losses]
        places = sorted(range(len(records)), key=order.__getitem__, reverse=True)
        state = self.history.states.get(self._begin)
        summary = {
            "run": str(self.history.run_dir.resolve()),
            "search": {"first": search.first, "last": search.last},
            **asdict(watch.facts[step]),
            "from_step": self._begin,
            "from_state": state and state.name,
            "neighbors": [asdict(own) for own in watch.facts.values() if own.step != step],
            "ended": self._ended,
            "repeated_reports": sorted(self._repeated),
            "differing_reports": sorted(self._differing),
            "records": [{**records[place], "place": place} for place in places],
            "wall_s": time.perf_counter() - start,
        }
        return summary, watch.passes

    def _walk(
        self, first: int, last: int, target: int | None
    ) -> tuple[watched_steps.StepWatch, list[dict[str, Any]]]:
        """Take steps, and return facts from ``first`` on and the target's records."""
        step = target or first
        self._begin, state = self._state_before(first, step)
        first = max(first, self._begin + 1)
        watch = watched_steps.StepWatch(first, last, target, lambda step: self._tell(step, last))
        position, parallel = self._begin, self.history.config_of(step)["parallel"]
        while True:  # a run that was resumed has parts with other configurations
            config = {**self.history.config_of(position + 1), "parallel": parallel}
            until = min([last, *(start for start in self.history.starts if start > position)])
            with closing(self._assembly(config, state)) as assembly:
                trainer = Trainer(watch.watched(training_parts(assembly), position, until))
                if state is not None and position == self._begin:
                    restore(trainer, assembly, state)
                elif state is not None:
                    trainer.load_state_dict(state)
                self._train(trainer, watch)
                if trainer.progress.step == until < last and not self._ended:
                    state = {**trainer.state_dict(), "init": assembly.config["init"].get(DIGEST)}
                    position = until
                    continue
                if step not in watch.facts:
                    what = f"the replay ended before it, after step {trainer.progress.step}"
                    if self._ended:
                        what += f" ({self._ended})"
                    raise errors.ConfigError(343, self._where, what, ELSEWHERE)
                watch.passes = watched_steps.gathered_passes(watch.passes, assembly.parallel)
                return watch, _records(assembly, watch.parts.objective, watch.passes)

    def _train(self, trainer: Trainer, watch: watched_steps.StepWatch) -> None:
        """Take steps until the last one, or until the error that ended the run."""
        try:
            trainer.fit([self])
        except watched_steps.LastStepTaken:
            pass
        except (errors.NumericError, errors.DistributedError) as error:
            if isinstance(error, errors.DistributedError) and error.args[0] != OTHER_RANK:
                raise
            watch.finish()
            self._ended = str(error)

    def _state_before(self, *limits: int) -> tuple[int, dict[str, Any] | None]:
        """Return the newest state before the first limit, or the next; 0, None: none."""
        for limit in limits:
            for step in sorted(self.history.states, reverse=True):
                if step < limit:
                    with suppress(Damaged):
                        return step, read_state(self.history.states[step])
        return 0, None

    def _assembly(self, config: Config, state: Mapping[str, Any] | None) -> Assembly:
        """Open the data as the run did, without what does not decide the training steps."""
        config = with_folds(with_functions(config))
        check_targets(config, self._allowed)
        resume = {**config["resume"], "run": str(self.history.run_dir), "auto": False}
        config = {**config, "resume": resume, "sink": {}, "watchers": {}}
        if config["schedule"].get("_target_") != FOLLOWS:
            config = {**config, "metrics": {}, "data": {**config["data"], "val": None}}
        if state is not None:
            config = with_saved_digest(config, state)
        assembly = Assembly(config, self._allowed, self._note)
        saved = self.history.facts["data"]["train"].get("digest")
        digest = assembly.train_source.manifest.digest
        if saved and digest and saved != digest:
            assembly.close()
            where = f"data.train = {data_name(config['data']['train'])}"
            what = "holds other records than when the run was trained"
            fix = "restore the store: a step can only be repeated with its own records"
            raise errors.DataError(340, where, what, fix)
        return assembly

    # A sink that compares the reports with those of the run

    def write(self, report: Report) -> None:
        logged = self._logged.get(report.step)
        if report.split == "train" and logged is not None:
            pairs = [(logged.get(name), mean) for name, mean in report.means.items()]
            # NaN is not equal to itself
            is_same = all(own == new or str(own) == str(new) for own, new in pairs)
            (self._repeated if is_same else self._differing).add(report.step)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _records(
    assembly: Assembly, objective: Objective, passes: Sequence[watched_steps.WatchedPass]
) -> list[dict[str, Any]]:
    """Return index, key, class and loss of every record, in the order of the passes."""
    source = assembly.train_source
    rows: list[dict[str, Any]] = []
    for done in passes:
        indices = done.batch["index"].tolist()
        names: list[str | None] = [None] * len(indices)
        target = done.batch.get(objective.target) if isinstance(objective, Predicts) else None
        if isinstance(target, Tensor) and target.dim() == 1 and not target.is_floating_point():
            names = [class_name(source.manifest.classes, label) for label in target.tolist()]
        losses = [None] * len(indices) if done.losses is None else done.losses.tolist()
        for index, name, loss in zip(indices, names, losses, strict=True):
            rows.append({"index": index, "key": source.key(index), "class": name, "loss": loss})
    return rows
