"""Take steps of a run again: from the nearest saved state, exactly as the run took them."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, final

import torch

from framework.commands.replay.choose_step import StepSearch, choose_step
from framework.commands.replay.run_history import Attempt, RunHistory, read_history
from framework.commands.replay.watched_steps import (
    LastStepTaken,
    StepWatch,
    WatchedPass,
    gathered_passes,
)
from framework.config.assemble import Assembly, assemble
from framework.config.init_weights import DIGEST, with_saved_digest
from framework.config.restore_run import fits_run, restore
from framework.config.resume import FOLLOWS, Learned, check_form, is_of, with_digest_of
from framework.config.saved_config import read_config
from framework.config.targets import Config, check_targets, data_name, with_folds, with_functions
from framework.config.training_parts import training_parts
from framework.contracts.data import Source
from framework.contracts.training import Objective, Report
from framework.errors import ConfigError, DataError, DistributedError, NumericError
from framework.measure.host import threads_per_rank
from framework.run import facts as present_facts
from framework.train.checkpoint import Damaged, read_state
from framework.train.trainer import Trainer

SINGLE = ("framework.parallel.none.", "framework.parallel.dp.")
VIRTUAL = "framework.parallel.virtual."
OTHER_RANK = 104  # of the error of ranks that did not meet the loss that ended a run
ELSEWHERE = "replay it where it ran: on another machine other bits come out"
COMPARED = ("processor", "num_cores", "gpus")  # of the machine: they may change bits


class ReplayJob(NamedTuple):
    """What to replay. JSON can carry it to another process.

    Attributes:
        run: The directory of the run.
        step: A number, ``max:METRIC``, ``min:METRIC`` or ``nan``.
    """

    run: str
    step: str


class ReplayedStep(NamedTuple):
    """A step that was taken again.

    Attributes:
        summary: What ``replay.json`` holds of it, without its records.
        passes: Its forward passes, of all ranks.
        source: The training data, still open.
        objective: The objective of the run.
    """

    summary: dict[str, Any]
    passes: list[WatchedPass]
    source: Source
    objective: Objective


Show = Callable[[ReplayedStep], None]  # called while the data is open


def replay_run(
    job: ReplayJob,
    allowed: Sequence[str],
    say: Callable[[str], None],
    told: Callable[[int, int], None],
    show: Show,
) -> None:
    """Find the step, take it again, and show it. All ranks call this together; rank 0 shows.

    Args:
        job: What to replay.
        allowed: Prefixes of the user's packages.
        say: Prints a note.
        told: Called after every step with its number and that of the last.
        show: Called with the step.
    """
    torch.set_num_threads(threads_per_rank())
    history = read_history(Path(job.run))
    for name in history.damaged:
        say(f"note: {name} is damaged, and no step starts from it")
    chosen = choose_step(job.step, history)
    again = RunAgain(history, allowed, say, told)
    search: StepSearch | None = None
    step = chosen
    if isinstance(step, StepSearch):
        search = step
        step = again.find(search, f"step = {job.step}")
    again.show(step, search, show)


@final
class RunAgain:
    """A run whose steps can be taken again.

    Attributes:
        repeated: The last step of each report that came out equal, bit by bit.
        differing: The last step of each report that did not.
        ended: The error that ended the run, if it was met.
        last_taken: The last step that was taken.
    """

    def __init__(
        self,
        history: RunHistory,
        allowed: Sequence[str],
        say: Callable[[str], None],
        told: Callable[[int, int], None],
    ) -> None:
        self.history = history
        self.allowed = tuple(allowed)
        self.say = say
        self.told = told
        self.repeated: set[int] = set()
        self.differing: set[int] = set()
        self.ended = ""
        self.last_taken = 0
        self.num_ranks = int(os.environ.get("WORLD_SIZE", "1"))

    def find(self, search: StepSearch, where: str) -> int:
        """Return the step that is searched.

        ConfigError C343 if all steps are finite, or none of them was taken.
        """
        watch = self._walk(search.first, search.last, None)
        facts = list(watch.facts.values())
        if not facts:
            raise self._ended_before(where)
        if not search.metric:
            bad = next((own.step for own in facts if not own.finite), None)
            if bad is None:
                what = f"steps {search.first} to {search.last} are all finite here"
                raise ConfigError(343, where, what, ELSEWHERE)
            return bad
        return max(facts, key=lambda own: search.rank(own.means)).step

    def _ended_before(self, where: str) -> ConfigError:
        """Return the error for a replay that ended before the steps that are wanted."""
        what = f"the replay ended before it, after step {self.last_taken}"
        if self.ended:
            what += f" ({self.ended})"
        return ConfigError(343, where, what, ELSEWHERE)

    def show(self, step: int, search: StepSearch | None, show: Show) -> None:
        """Take a step and its neighbors, and show it. ConfigError C343 if it was not taken."""
        start = time.perf_counter()

        def seen(watch: StepWatch, assembly: Assembly, begin: int) -> None:
            if step not in watch.facts:
                raise self._ended_before(f"step = {step}")
            summary = {
                "run": str(self.history.run_dir.resolve()),
                "search": search and search._asdict(),
                **self._summary(watch, step, begin),
                "wall_s": time.perf_counter() - start,
            }
            assert watch.parts is not None
            passes = gathered_passes(watch.passes, assembly.parallel)
            if assembly.leads:
                source = assembly.train_source
                show(ReplayedStep(summary, passes, source, watch.parts.objective))

        self._walk(self._neighbor_before(step), self._neighbor_after(step), step, seen)

    def _neighbor_before(self, step: int) -> int:
        """Return the step before, or ``step`` if none is before it, or if other ranks took it."""
        if step == 1 or self._ranks_of(self.history.attempt_at(step - 2)) != self.num_ranks:
            return step
        return step - 1

    def _neighbor_after(self, step: int) -> int:
        """Return the next step, or ``step`` itself if a resume with other ranks lies between."""
        if self._ranks_of(self.history.attempt_at(step)) != self.num_ranks:
            return step
        return step + 1

    def _summary(self, watch: StepWatch, step: int, begin: int) -> dict[str, Any]:
        state = self.history.states.get(begin)
        if watch.failure:
            self.say(f"note: the losses of single records are not known ({watch.failure})")
        return {
            **asdict(watch.facts[step]),
            "from_step": begin,
            "from_state": state and state.name,
            "neighbors": [asdict(own) for own in watch.facts.values() if own.step != step],
            "ended": self.ended,
            "repeated_reports": sorted(self.repeated),
            "differing_reports": sorted(self.differing),
            "differences": self._differences(),
        }

    def _differences(self) -> list[str]:
        """Return what differs from where the run was trained, and may change bits."""
        now = present_facts([], [])
        saved = self.history.facts
        names = [("versions", name) for name in now["versions"]]
        names += [("machine", name) for name in COMPARED]
        return [
            f"{name} was {saved.get(group, {}).get(name)}, is {now[group].get(name)}"
            for group, name in names
            if saved.get(group, {}).get(name) != now[group].get(name)
        ]

    def _walk(
        self,
        first: int,
        last: int,
        target: int | None,
        seen: Callable[[StepWatch, Assembly, int], None] | None = None,
    ) -> StepWatch:
        """Take steps from the nearest state, and keep the facts of those from ``first`` on.

        Args:
            first: The first step to watch.
            last: The last one.
            target: The step to look at closely, if any.
            seen: Called at the end, while the data is open, with the step of the state.
        """
        begin, state = self._start(first, target)
        watch = StepWatch(max(first, begin + 1), last, target, lambda step: self.told(step, last))
        position = begin
        while True:
            until = self._end_of_part(position, last)
            with closing(self._assembly(position, state)) as assembly:
                trainer = self._trainer(assembly, watch, position, until, state)
                has_ended = self._train(trainer, watch)
                self.last_taken = trainer.progress.step
                if has_ended or trainer.progress.step < until or until == last:
                    if seen is not None:
                        seen(watch, assembly, begin)
                    return watch
                state = {**trainer.state_dict(), "init": assembly.config["init"].get(DIGEST)}
                position = until

    def _start(self, first: int, target: int | None) -> tuple[int, dict[str, Any] | None]:
        """Return the newest whole state before ``first``, or else before ``target``, and its step.

        Without any, the run is repeated from its start: 0 and None.
        """
        wanted = [first] if target is None else [first, target]
        for limit in wanted:
            for step in sorted(self.history.states, reverse=True):
                if step >= limit:
                    continue
                try:
                    state = read_state(self.history.states[step])
                except Damaged as error:
                    name = self.history.states[step].name
                    self.say(f"note: {name} cannot be read ({error}); an older one is taken")
                    continue
                with fits_run(str(self.history.run_dir)):
                    check_form(state)
                return step, state
        return 0, None

    def _end_of_part(self, position: int, last: int) -> int:
        """Return the step at which the run was resumed next, or the last one."""
        later = [part.start for part in self.history.attempts if position < part.start < last]
        return min(later, default=last)

    def _assembly(self, position: int, state: Mapping[str, Any] | None) -> Assembly:
        """Open the data as the run did.

        ConfigError C344 if other ranks took these steps, DataError D340 if the data has changed.
        """
        attempt = self.history.attempt_at(position)
        config = read_config(self.history.run_dir, attempt.config).config
        self._check_ranks(attempt, position)
        config = with_folds(with_functions(config))
        check_targets(config, self.allowed)
        config = _only_training(config, self.history.run_dir, self.num_ranks)
        if state is not None:
            config = with_saved_digest(config, state)
        assembly = assemble(config, self.allowed, self.say)
        try:
            self._check_data(assembly, (state or {}).get("learned"))
        except BaseException:
            assembly.close()
            raise
        return assembly

    def _check_data(self, assembly: Assembly, learned: Learned | None) -> None:
        """Raise DataError D340 if the training data is not that of the run.

        ``learned`` is from a saved state; without one, ``run.json`` tells the digest.
        """
        if learned is None:
            recorded = self.history.facts.get("data", {}).get("train", {})
            learned = with_digest_of(recorded.get("digest") or None)
        digest = assembly.train_source.manifest.digest
        if learned.get("data.digest") is None or not digest or is_of(learned, digest):
            return
        where = f"data.train = {data_name(assembly.config['data']['train'])}"
        what = "holds other records than when the run was trained"
        fix = "restore the store: a step can only be repeated with its own records"
        raise DataError(340, where, what, fix)

    def _ranks_of(self, attempt: Attempt) -> int:
        config = read_config(self.history.run_dir, attempt.config).config
        return max(1, num_ranks(config, attempt))

    def _check_ranks(self, attempt: Attempt, position: int) -> None:
        count = self._ranks_of(attempt)
        if count == self.num_ranks:
            return
        where = f"run = {self.history.run_dir}"
        what = (
            f"the steps after {position} were taken by {count} ranks, and later ones by "
            f"{self.num_ranks}, with no state between them"
        )
        fix = "choose an earlier step, and keep more states with checkpoint.keep=10"
        raise ConfigError(344, where, what, fix)

    def _trainer(
        self,
        assembly: Assembly,
        watch: StepWatch,
        position: int,
        until: int,
        state: dict[str, Any] | None,
    ) -> Trainer:
        parts = training_parts(assembly)
        trainer = Trainer(watch.watched(parts, position, until))
        if state is not None and "learned" in state:
            restore(trainer, assembly, state)
        elif state is not None:  # of the part before
            trainer.load_state_dict(state)
        return trainer

    def _train(self, trainer: Trainer, watch: StepWatch) -> bool:
        """Take steps. Return whether the error that ended the run was met."""
        try:
            trainer.fit([_ComparingSink(self)])
        except LastStepTaken:
            pass
        except (NumericError, DistributedError) as error:
            if isinstance(error, DistributedError) and error.args[0] != OTHER_RANK:
                raise
            watch.finish()
            self.ended = str(error)
            return True
        return False


def _only_training(config: Config, run_dir: Path, num_ranks: int) -> Config:
    """Return the configuration without what does not decide the training steps."""
    parallel = config["parallel"]
    if "num_processes" in parallel:
        parallel = on_this_host(parallel, num_ranks)
    config = {
        **config,
        "parallel": parallel,
        "resume": {"run": str(run_dir), "auto": False, "allow": []},
        "sink": {},
        "watchers": {},
    }
    if config["schedule"].get("_target_") != FOLLOWS:
        config = {**config, "metrics": {}, "data": {**config["data"], "val": None}}
    return config


def ranks_at(history: RunHistory, step: int) -> tuple[int, Config]:
    """Return how many ranks take a step again, and their block ``parallel``.

    0 ranks stand for this process.
    """
    attempt = history.attempt_at(step - 1)
    config = read_config(history.run_dir, attempt.config).config
    count = num_ranks(config, attempt)
    return count, on_this_host(config["parallel"], max(1, count))


def num_ranks(config: Config, attempt: Attempt) -> int:
    """Return how many ranks repeat a part of a run; 0: this process does."""
    parallel = config["parallel"]
    target = parallel["_target_"]
    if target.startswith(SINGLE):
        return 0
    if target.startswith(VIRTUAL):  # one process repeats what several have computed
        return 1
    # torchrun and srun start other numbers than the configuration says
    return attempt.ranks or parallel.get("num_processes", 1) * parallel.get("num_nodes", 1)


def on_this_host(parallel: Config, num_ranks: int) -> Config:
    """Return the block with all ranks on this host, of which a lost one is not replaced."""
    return {**parallel, "num_processes": num_ranks, "num_nodes": 1, "max_restarts": 0}


@final
class _ComparingSink:
    """A sink that compares the reports with those of the run."""

    def __init__(self, again: RunAgain) -> None:
        self._again = again
        self._logged = {report.last: report for report in again.history.reports}

    def write(self, report: Report) -> None:
        logged = self._logged.get(report.step)
        if report.split != "train" or logged is None:
            return
        pairs = [(logged.means.get(name), mean) for name, mean in report.means.items()]
        # NaN is not equal to itself
        if all(own == new or str(own) == str(new) for own, new in pairs):
            self._again.repeated.add(report.step)
        else:
            self._again.differing.add(report.step)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
