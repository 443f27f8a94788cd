"""Take a step of a run again: from the nearest saved state, exactly as the run took it. Show it."""

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
from framework.cli.run_records import means_of
from framework.cli.tables import plural, print_table
from framework.commands.replay import watched_steps
from framework.commands.replay.watched_steps import WatchedPass
from framework.config.assemble import Assembly
from framework.config.init_weights import DIGEST, with_saved_digest
from framework.config.input_source import class_name
from framework.config.resume import FOLLOWS, read_config, restore
from framework.config.targets import Config, check_targets, completed, data_name
from framework.config.training_parts import training_parts
from framework.contracts.batch import tensors
from framework.contracts.prediction import Predicts
from framework.contracts.training import Objective, Report, Sink
from framework.errors import say
from framework.measure.host import threads_per_rank
from framework.sink.base import write_picture
from framework.system import run_dir as run_files
from framework.system.durable import write_json
from framework.train.checkpoint import Damaged, read_state, saved_steps
from framework.train.trainer import Trainer

RESULT = "replay.json"
MOST_ROWS = 20  # of a table on the terminal
Summary = Mapping[str, Any]
ELSEWHERE = "replay it where it ran: on another machine other bits come out"


class LoggedReport(NamedTuple):
    """A report of training on the steps ``first`` to ``last``."""

    first: int
    last: int
    means: dict[str, float]
    skipped: int  # steps of the run so far that left the weights unchanged


class StepSearch(NamedTuple):
    """A search for a step within one report."""

    first: int
    last: int
    metric: str = ""  # empty: for the first step that is not finite
    sign: int = 1  # for the highest metric; -1 for the lowest

    def badness(self, means: Mapping[str, float]) -> float:
        """Return how bad a step or report is. A mean that is no number is the worst."""
        value = self.sign * means.get(self.metric, math.nan)
        return math.inf if math.isnan(value) else value


class RunHistory(NamedTuple):
    run_dir: Path
    facts: Mapping[str, Any]  # what ``run.json`` holds
    states: Mapping[int, Path]  # the file of each saved state by its step
    reports: Sequence[LoggedReport]  # of training, in their order
    last_step: int  # the last step that the run is known to have taken
    diverged: bool  # whether a loss, a weight or gradients that were not finite ended the run

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
    reports: list[LoggedReport] = []
    last = 0
    with suppress(OSError):
        for line in run_files.lines_of(run_dir / run_files.REPORTS):
            if line.get("split") == "train" and line["step"] > last:
                means = run_files.numbers({name: line[name] for name in means_of(line)})
                reports.append(LoggedReport(last + 1, line["step"], means, line.get("skipped", 0)))
                last = line["step"]
    states = saved_steps(run_dir)
    ended = run_files.read_object(run_dir / run_files.ENDED)
    counts = (ended.get("step"), run_files.read_object(run_dir / run_files.SUMMARY).get("steps"))
    last_step = max([last, *states, *(count or 0 for count in counts)])
    diverged = ended.get("code") == errors.NumericError.exit_code
    facts = run_files.read_object(run_dir / run_files.FACTS)
    return RunHistory(run_dir, facts, states, reports, last_step, diverged)


def choose_step(text: str, history: RunHistory) -> StepSearch:
    """Return the step that ``step=`` names, or the report in which to search it."""
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
class RunAgain(Sink):
    """A run one of whose steps can be taken again; a Sink that compares reports on the way.

    All ranks call the same methods. ``progress`` is called after every step with ``completed``, its
    number, and ``total``, that of the last. CheckpointError K120 for no run, ConfigError C340
    (``text`` is no step), C341 (a step not taken), C342 (an unknown metric), C343 (no report to
    search).
    """

    def __init__(
        self,
        run_dir: Path,
        text: str,
        allowed: Sequence[str] = (),
        note: Callable[[str], None] = lambda _: None,
        progress: Callable[..., object] = lambda **_: None,
    ) -> None:
        read_config(run_dir)
        self.history = read_history(run_dir)
        self.search = choose_step(text, self.history)
        self._where = f"step = {text}"
        self._allowed = tuple(allowed)
        self._note = note
        self._progress = progress
        self._logged = {report.last: report.means for report in self.history.reports}
        self._repeated: set[int] = set()  # last steps of reports that are equal, bit by bit
        self._differing: set[int] = set()  # last steps of reports that differ
        self._begin = 0  # the step of the state
        self._ended = ""  # the error that ended the run, if it was met

    def take(self) -> tuple[dict[str, Any], list[WatchedPass]]:
        """Find the step, and take it again between its neighbors.

        Return what ``replay.json`` holds, and the forward passes of the step. The records are
        sorted by loss, the highest first, each with its place among those of the passes.
        ConfigError C343 if it is not found or not taken, DataError D340 if the data has changed.
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
        state: dict[str, Any] | None = None
        self._begin = 0
        newest = sorted(self.history.states, reverse=True)
        # the newest state before the first step, or before the one that is wanted
        for number in [own for limit in (first, step) for own in newest if own < limit]:
            with suppress(Damaged):
                state = read_state(self.history.states[number])
                self._begin = number
                break
        first = max(first, self._begin + 1)
        watch = watched_steps.StepWatch(
            first, last, target, lambda step: self._progress(completed=step, total=last)
        )
        position, parallel = self._begin, self.history.config_of(step)["parallel"]
        starts = [part["step"] for part in self.history.facts.get("starts", [])]
        while True:  # a run that was resumed has parts with other configurations
            config = {**self.history.config_of(position + 1), "parallel": parallel}
            until = min([last, *(start for start in starts if start > position)])
            with closing(self._assembly(config, state)) as assembly:
                trainer = Trainer(watch.watched(training_parts(assembly), position, until))
                if state is not None and position == self._begin:
                    restore(trainer, assembly, state)
                elif state is not None:
                    trainer.load_state_dict(state)
                try:  # until the last step, or the error that ended the run
                    trainer.fit([self])
                except watched_steps.LastStepTaken:
                    pass
                except (errors.NumericError, errors.DistributedError) as error:
                    of_rank = isinstance(error, errors.DistributedError)
                    if of_rank and error.args[0] != 104:  # it did not meet the loss itself
                        raise
                    watch.finish()
                    self._ended = str(error)
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

    def _assembly(self, config: Config, state: Mapping[str, Any] | None) -> Assembly:
        """Open the data as the run did, without what does not decide the training steps."""
        config = completed(config)
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

    def write(self, report: Report) -> None:
        logged = self._logged.get(report.step)
        if report.split == "train" and logged is not None:
            pairs = [(logged.get(name), mean) for name, mean in report.means.items()]
            # NaN is not equal to itself
            is_same = all(own == new or str(own) == str(new) for own, new in pairs)
            (self._repeated if is_same else self._differing).add(report.step)


def _records(
    assembly: Assembly, objective: Objective, passes: Sequence[WatchedPass]
) -> list[dict[str, Any]]:
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


def show_replay(summary: dict[str, Any], passes: Sequence[WatchedPass], run_dir: Path) -> None:
    """Write the files into ``replay/step_N`` of the run, and print what they say."""
    folder = run_dir / "replay" / f"step_{summary['step']}"
    folder.mkdir(parents=True, exist_ok=True)
    order = torch.tensor([record.pop("place") for record in summary["records"]][:64])
    files = [RESULT]
    for name, first in tensors(passes[0].batch).items() if passes else ():
        images = [done.batch[name] for done in passes]
        is_number = first.dtype == torch.uint8 or first.is_floating_point()
        has_pixels = first.dim() == 4 and min(first.shape[2:]) > 1 and first.shape[1] in (1, 3)
        if is_number and has_pixels and len({part.shape[1:] for part in images}) == 1:
            # a field may have any name
            ending = re.sub(r"[^\w.-]", "_", f"-{name}") if len(files) > 1 else ""
            files.append(f"batch{ending}.png")
            write_picture(folder / files[-1], as_pixels(torch.cat(images)[order]))
    write_json(folder / RESULT, run_files.redacted(summary))
    print_replay(summary)
    say(f"written: {folder} ({', '.join(files)})")


def as_pixels(images: Tensor) -> Tensor:
    """Return images as uint8: channels of floats are stretched, and what is not finite is black."""
    if images.dtype == torch.uint8:
        return images.cpu()
    values = images.detach().cpu().double()
    finite = values.isfinite()
    low = torch.where(finite, values, math.inf).amin((0, 2, 3), keepdim=True)
    high = torch.where(finite, values, -math.inf).amax((0, 2, 3), keepdim=True)
    shares = torch.where(finite, (values - low) / (high - low).clamp(min=1e-12), 0.0)
    return (255 * shares.nan_to_num(0.0)).round().to(torch.uint8)


def print_replay(summary: Summary) -> None:
    skipped = "" if summary["updated"] else ", and the step was skipped"
    means = ", ".join(f"{name} {value:.4f}" for name, value in summary["means"].items())
    rate = f"learning rate {summary['learning_rate']:.3g}"
    say(f"step {summary['step']} of epoch {summary['epoch']}: {means}, {rate}{skipped}")
    search = summary["search"]
    if search["first"] < search["last"]:
        say(f"found among steps {search['first']} to {search['last']}")
    checked = "no report of the run lies on the way, so nothing could be compared"
    if differing := summary["differing_reports"]:
        checked = f"NOT as the run took it: the report of step {differing[0]} differs"
        checked += "; look at the versions, the threads and the processor of this machine"
    elif repeated := summary["repeated_reports"]:
        checked = f"{plural(len(repeated), 'report')} on the way came out equal, bit by bit"
    origin = summary["from_state"] or "the start of the run"
    say(f"repeated from {origin} in {summary['wall_s']:.1f} s; {checked}")
    if summary["ended"]:
        say(f"then the run ended: {summary['ended']}")
    records = summary["records"]
    title = "records"
    if len(records) > MOST_ROWS:
        title = f"the {MOST_ROWS} of {len(records)} records with the highest loss"
        if records[0]["loss"] is None:
            title = f"the first {MOST_ROWS} of {len(records)} records"
    say(title)
    rows: list[list[str]] = []
    for own in records[:MOST_ROWS]:
        loss = "" if own["loss"] is None else f"{own['loss']:.4f}"
        rows.append([str(own["index"]), own["key"], str(own["class"] or ""), loss])
    print_table("", ["record", "key", "class"], ["loss"], rows)
    say("norms of the gradients, before clipping")
    steps = sorted([summary["step"], *(own["step"] for own in summary["neighbors"])])
    print_table("", ["layer"], [f"step {step}" for step in steps], gradient_rows(summary))


def gradient_rows(summary: Summary, most: int = MOST_ROWS) -> list[list[str]]:
    """Return the losses, the norms of all layers together, and those of ``most`` that grew most."""
    facts = sorted([summary, *summary["neighbors"]], key=lambda own: own["step"])

    def growth(name: str) -> float:
        norm = summary["gradients"][name]
        others = [own["gradients"].get(name, 0.0) for own in summary["neighbors"]]
        highest = max((norm for norm in others if math.isfinite(norm)), default=0.0)
        return norm / max(highest, 1e-30) if math.isfinite(norm) else math.inf

    layers = list(summary["gradients"])
    kept = sorted(layers, key=growth, reverse=True)[:most]
    rows = [["loss", *(f"{own['means']['loss']:.4g}" for own in facts)]]
    total = [math.hypot(*own["gradients"].values()) for own in facts]
    rows.append(["all layers", *(f"{norm:.4g}" for norm in total)])
    for name in layers:
        if name in kept:
            norms = (own["gradients"].get(name) for own in facts)
            rows.append([name, *("" if norm is None else f"{norm:.4g}" for norm in norms)])
    return rows
