"""Diagnose a configured run: gather facts, apply all rules, try the best advice, and rank it."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from framework.cli.arguments import check_output, config_flags, granted, typed_value
from framework.cli.hydra_app import composed
from framework.cli.outcome import RunOutcome
from framework.cli.run_ranks import RankedJob, pack_missing
from framework.commands.diagnose import measure_run
from framework.commands.diagnose.diagnose import RULES, Asked, changed
from framework.commands.diagnose.measure_parts import Say, Setting, gather_facts
from framework.config.schema import LOADER
from framework.contracts.records import Chunk
from framework.diagnosis import print_facts
from framework.diagnosis.facts import Facts, Repack, Verdict
from framework.diagnosis.judge import Applied, Diagnosis, cause_of, limit_of, verdicts_of
from framework.diagnosis.step_rules import RUN_PARTS
from framework.errors import ConfigError, PacelineError, say
from framework.input import folder, store
from framework.measure.host import cores_per_rank, num_cores
from framework.measure.statistics import LEAST_GAIN, Pairs, take_turns
from framework.order.draws import permutation
from framework.pack import jobs, pack_store, packing, preparation
from framework.parallel.processes import rank_environment
from framework.store.hdf5_store import HDF5Writer
from framework.system.durable import write_json
from framework.system.stopping import message_if_stopped, scratch_folder

NUM_TRIALS = 4
# Shares of the given seconds.
RANKS_SHARE = 0.5
PARTS_SHARE = 0.35
SAMPLE_SHARE = 0.06
TRIAL_SHARE = 0.03
BURN_SHARE = 0.02
APPLY_SHARE = 0.08
# Reading a slow disk would fill the page cache for all later trials; compile_model takes a minute.
UNTRIED = {"cold_disk", "network_disk", "compile_model"}
PAIRS = 4
RUN = 8  # neighbors that are read together, since they lie in one chunk or close on the disk

Compose = Callable[[Sequence[str]], Setting]  # makes a setting with these additional overrides


def run_diagnosis(asked: Asked, arguments: list[str], start: float, own: Path) -> RunOutcome:
    """Compose a run, diagnose it and print. ``own`` is an empty folder for files of the ranks."""
    if typed_value(arguments, "parallel.num_nodes") is None:
        os.environ.update(rank_environment(os.environ))  # of a task of srun
    if os.environ.get("RANK", "0") != "0":
        measure_run.measured_as_rank(None, asked.seconds)  # rank 0 says how long
        return RunOutcome(0, "measured")
    grant = granted(arguments)
    config, allowed = composed(asked.words, grant, asked.config_dir, tuple(RULES))
    check_output(asked.output, 191)
    parallel = config["parallel"]
    num_ranks = parallel.get("num_processes", 1) * parallel.get("num_nodes", 1)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:  # another launcher started the ranks
        num_ranks = int(os.environ["WORLD_SIZE"])
        if "num_processes" not in parallel:
            what = f"started as one of {num_ranks} ranks, each of which is alone"
            raise ConfigError(190, "parallel", what, "add parallel=ddp, or leave out the launcher")
    with message_if_stopped("stopped{by}: the diagnosis is not complete"):
        words = asked.words
        ranks: dict[str, Any] = {}
        if num_ranks > 1:
            try:
                known = _diagnose_ranks(asked, start, own, config, allowed)
            except measure_run.RanksFailed as failed:
                return failed.args[0]
            if known is None or known["cause"]:
                return RunOutcome(0, "diagnosed")
            ranks = {"ranks": known}
            share = ["parallel=none"]  # the overrides that make one process do what a rank does
            if config["data"]["source"]["_target_"] != LOADER:  # its batches come as they are
                size = config["batch_size"] // num_ranks
                if config["rank_batch_size"] is not None:
                    size = config["rank_batch_size"] * config["accumulate"]
                share += [f"batch_size={max(1, size)}", "rank_batch_size=null"]
            alone = f"what one of them does alone ({' '.join(share)})"
            say(f"no rank holds up the others; {alone}:\n")
            words = changed(words, share)

        def compose(changes: Sequence[str]) -> Setting:
            return Setting(*composed(changed(words, changes), grant, asked.config_dir))

        setting = compose(())
        pack_missing(setting.config, setting.allowed)
        # Imports and small packing have taken some of the time.
        left_s = asked.seconds - (time.perf_counter() - start)
        progress = partial(_say_progress, start)
        diagnosis = diagnose(compose, max(left_s, 0.4 * asked.seconds), progress)
        print_facts.show(diagnosis, partial(_train_words, asked, words))
        if asked.apply:
            diagnosis = apply(diagnosis, compose, asked.seconds, progress)
            print_facts.show_applied(diagnosis.applied)
        _write(asked, {**print_facts.as_json(diagnosis, words), **ranks})
    return RunOutcome(0, "diagnosed")


def _diagnose_ranks(
    asked: Asked, start: float, own: Path, config: dict[str, Any], allowed: tuple[str, ...]
) -> dict[str, Any] | None:
    """Return the figures of several ranks; None if another host leads."""
    _say_progress(start, "training all ranks")
    seconds = RANKS_SHARE * asked.seconds
    if "RANK" in os.environ:
        threads = cores_per_rank()
        facts = measure_run.measured_as_rank(RankedJob(config, str(own), allowed), seconds)
    else:
        threads = max(1, num_cores() // config["parallel"]["num_processes"])
        facts = measure_run.measured_here(config, allowed, own, seconds)
    if facts is None:
        return None
    print_facts.show_ranks(facts, partial(_train_words, asked, asked.words))
    took_s = time.perf_counter() - start
    plain = print_facts.ranks_as_json(facts, asked.words, took_s)
    if plain["cause"]:
        say(f"took {took_s:.0f} s")
        if asked.apply:
            say("applied: nothing, since advice about ranks has to be followed by hand")
        _write(asked, plain)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # the environment of one rank alone
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        os.environ.pop(name, None)
    return plain


def _train_words(asked: Asked, words: Sequence[str], changes: Sequence[str]) -> list[str]:
    return ["train", *config_flags(asked.config_dir), *changed(words, changes)]


def _say_progress(start: float, text: str) -> None:
    say(f"{time.perf_counter() - start:5.1f} s  {text}", sys.stderr)


def _write(asked: Asked, plain: dict[str, Any]) -> None:
    if asked.output is not None:
        write_json(Path(asked.output), plain)
        say(f"all figures: {asked.output}")


def diagnose(compose: Compose, seconds: float, say: Say) -> Diagnosis:
    """Measure, judge and try advice in about ``seconds``; slow steps take longer."""
    start = time.perf_counter()
    facts = gather_facts(compose(()), PARTS_SHARE * seconds, say)
    verdicts = _Trials(facts, compose, seconds, start + seconds, say).tried(verdicts_of(facts))
    good: list[Verdict] = []
    for verdict in verdicts:
        # Advice that could be tried but was not is left out, unless it was too rare for a trial.
        is_untried = verdict.rule in UNTRIED or verdict.period_s > 0
        is_certain = verdict.tried or is_untried or not verdict.can_try
        is_gain = verdict.gain - verdict.spread >= LEAST_GAIN and not verdict.failed
        if verdict.rule == "data_is_fine" or (is_certain and is_gain):
            good.append(verdict)
    good.sort(key=_rank)
    rejected = tuple(verdict for verdict in verdicts if verdict not in good)
    cause = cause_of(facts, good, rejected)
    if cause is not None and "wait" in cause.parts:
        # A trial that gains refutes the estimate that data is fine.
        good = [verdict for verdict in good if verdict.rule != "data_is_fine"]
    rule = "" if cause is None else cause.rule
    limit = limit_of(facts, cause, good)
    return Diagnosis(facts, rule, limit, tuple(good), rejected, time.perf_counter() - start)


def _rank(verdict: Verdict) -> tuple[bool, float]:
    """Rank data_is_fine first, then by gain, with a handicap for advice that changes learning."""
    return verdict.rule != "data_is_fine", -verdict.gain * (0.95 if verdict.learns else 1.0)


class _Trials:
    """Trials of advice against the present settings, until the clock shows ``end`` seconds."""

    def __init__(
        self, facts: Facts, compose: Compose, seconds: float, end: float, say: Say
    ) -> None:
        self._facts = facts
        self._compose = compose
        self._end = end
        self._say = say
        self._seconds = seconds
        self._run_s = 0.0  # of the longest trial, with its start
        self._numbers = count(1)
        self._before = compose(())
        self._last: dict[bool, float] = {}  # of the present settings, by whether it is of a run
        self._tried: dict[str, tuple[Setting, Pairs]] = {}  # by rule

    def tried(self, verdicts: list[Verdict]) -> list[Verdict]:
        """Try the most promising advice, and the best of it for longer. Return all verdicts."""
        by_rule = {verdict.rule: verdict for verdict in verdicts}
        candidates = [
            verdict
            for verdict in verdicts
            if (verdict.can_try or verdict.trial)
            and verdict.rule not in UNTRIED
            and 10 * verdict.period_s <= TRIAL_SHARE * self._seconds  # it happens often enough
        ]
        with scratch_folder("paceline-diagnose-") as folder:
            for verdict in candidates[:NUM_TRIALS]:
                # The best advice is tried again, which takes two runs at least.
                left_s = self._end - time.perf_counter()
                if left_s < 4 * self._run_s or left_s <= 0:
                    break
                has_gained = any(pairs.gain >= LEAST_GAIN for _, pairs in self._tried.values())
                if has_gained and verdict.gain < LEAST_GAIN:
                    break
                try:
                    by_rule[verdict.rule] = self._try(verdict, f"{folder}/{verdict.rule}")
                except PacelineError as error:
                    # What was tried in place of an action says nothing about the action.
                    if not verdict.trial:
                        by_rule[verdict.rule] = replace(verdict, failed=str(error))
            if self._tried:
                # Again, for longer, as often as there is time. The first trial counts, too.
                best = min((by_rule[rule] for rule in self._tried), key=_rank)
                left_s = self._end - time.perf_counter()
                num_pairs = min(3, int(left_s / (2 * self._run_s)))
                if num_pairs >= 1:
                    self._say(f"trying {best.rule} for longer")
                    setting, first = self._tried[best.rule]
                    settings, of_run = (self._before, setting), best.parts == RUN_PARTS
                    more = take_turns(
                        lambda side: self._rate(settings[side], of_run, 1.3), num_pairs
                    )
                    pairs = Pairs(first.before + more.before, first.after + more.after)
                    by_rule[best.rule] = replace(
                        best, gain=pairs.gain, spread=pairs.spread, tried=True
                    )
        return list(by_rule.values())

    def _try(self, verdict: Verdict, folder: str) -> Verdict:
        """Return the verdict with its measured gain. ``folder`` is for a sample of the store."""
        repack, words = verdict.repack, [*verdict.overrides, *verdict.trial]
        if repack is not None and self._facts.storage is not None:
            self._say(f"packing a sample to try {verdict.rule}")
            os.mkdir(folder)
            num_records = self._facts.storage.num_records
            # Not more than the store has: epochs of few steps are slower, before and after packing.
            wanted = min(16 * self._facts.batch_size, num_records)
            path = f"{folder}/sample.h5"
            record_s, size = write_sample(repack, path, wanted, SAMPLE_SHARE * self._seconds)
            pack_s = record_s * num_records / self._facts.num_cores
            verdict = replace(verdict, pack_s=pack_s, disk_bytes=size * num_records)
            words = ["data=hdf5", f"data.train={path}", f"data.val={path}", *words]
        setting = self._compose(words)._replace(threads=verdict.threads)
        self._say(f"trying {verdict.rule}")
        of_run = verdict.parts == RUN_PARTS
        if of_run not in self._last:
            self._last[of_run] = self._rate(self._before, of_run)
        rate = self._rate(setting, of_run)
        now = self._rate(self._before, of_run)
        pairs = Pairs((self._last[of_run], now), (rate, rate))
        self._tried[verdict.rule] = (setting, pairs)
        self._last[of_run] = now
        return replace(verdict, gain=pairs.gain, spread=pairs.spread, tried=True)

    def _rate(self, setting: Setting, of_run: bool, longer: float = 1.0) -> float:
        start = time.perf_counter()
        timing = (longer * TRIAL_SHARE * self._seconds, BURN_SHARE * self._seconds)
        rate = measured_rate(setting, of_run, *timing, next(self._numbers))
        self._run_s = max(self._run_s, time.perf_counter() - start)
        return rate


def apply(diagnosis: Diagnosis, compose: Compose, seconds: float, say: Say) -> Diagnosis:
    """Compare the best advice with the present settings. A store is packed as the advice says."""
    verdict = diagnosis.best
    if verdict is None or not verdict.can_try:
        return diagnosis
    note = ""
    if (repack := verdict.repack) is not None:
        say("packing")
        for path, target in repack.paths.values():
            prepare = preparation.Preparation(**repack.options)
            work = packing.Packing(_input(repack, path), HDF5Writer, target, prepare)
            pack_store.pack(work, None)
        note = f"packed: {', '.join(target for _, target in repack.paths.values())}"
    settings = (compose(()), compose(verdict.words)._replace(threads=verdict.threads))
    say(f"{verdict.rule} and the present settings in turn, {PAIRS} times each")
    timing = (APPLY_SHARE * seconds, BURN_SHARE * seconds)
    of_run, numbers = verdict.parts == RUN_PARTS, count(2 * NUM_TRIALS)
    pairs = take_turns(
        lambda side: measured_rate(settings[side], of_run, *timing, next(numbers)), PAIRS
    )
    return replace(diagnosis, applied=Applied(verdict, pairs, note))


def measured_rate(
    setting: Setting, of_run: bool, seconds: float, burn_in_s: float, number: int
) -> float:
    """Return the records per second of training, or of a run that validates, saves and reports."""
    if of_run:
        return measure_run.run_rate(setting.config, setting.allowed, seconds + burn_in_s)
    # Each in epochs of its own, because records that were read are in memory.
    with closing(setting.probe(num_windows=4, epoch=1000 + number)) as probe:
        return probe.train(seconds, burn_in_s).records_per_s


def write_sample(repack: Repack, path: str, wanted: int, seconds: float) -> tuple[float, float]:
    """Pack spread records, repeated up to ``wanted``. Return seconds and bytes of one."""
    source = _input(repack, repack.targets["train"][0])
    prepare = preparation.Preparation(**repack.options)
    fields = prepare.fields(source)
    num_records = source.manifest.num_records
    starts = permutation(-(-num_records // RUN), 0, 0).tolist()
    chunks: list[Chunk] = []
    num_different = 0
    begin = time.perf_counter()
    while starts and num_different < wanted:
        if chunks and time.perf_counter() - begin >= seconds:
            break
        first = starts.pop() * RUN
        chunks.append(prepare(source.read(first, min(first + RUN, num_records))))
        num_different += len(chunks[-1].keys)
    record_s = (time.perf_counter() - begin) / num_different
    num_bytes = max(1, sum(map(jobs.chunk_bytes, chunks)))
    times = max(1, min(-(-wanted // num_different), (512 << 20) // num_bytes))
    total = num_different * times
    writer = HDF5Writer(path, fields=fields, num_records=total)
    try:
        for number in range(times):
            for chunk in chunks:
                writer.write(chunk.records, [f"{number}/{key}" for key in chunk.keys])
        changes: dict[str, Any] = {"fields": fields, "num_records": total, "options": {}}
        writer.close(replace(source.manifest, **changes, class_counts=()))
    finally:
        writer.abort()
    return record_s, num_bytes / num_different


def _input(repack: Repack, path: str) -> Any:
    if repack.source == "folder":
        return folder.FolderInput(path, None, None, repack.follow_links)
    return store.StoreInput(path)
