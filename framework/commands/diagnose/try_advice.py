"""The diagnosis: gather facts, apply all rules, try the most promising advice, and rank it."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count
from typing import Any

from framework.commands.diagnose.measure_parts import Say, Setting, gather_facts
from framework.commands.diagnose.measure_run import run_rate
from framework.contracts.records import Chunk
from framework.diagnosis.facts import ENDINGS, Facts, Repack, Verdict
from framework.diagnosis.judge import Applied, Diagnosis, cause_of, limit_of, verdicts_of
from framework.diagnosis.step_rules import RUN_PARTS
from framework.errors import PacelineError
from framework.input import folder, store
from framework.measure.statistics import LEAST_GAIN, Pairs, take_turns
from framework.order.permutation import permutation
from framework.pack import jobs, pack_store, packing
from framework.pack.preparation import Preparation
from framework.store import hdf5_store, lmdb_store
from framework.system.stopping import scratch_folder

NUM_TRIALS = 4
# The best advice is tried again, up to three times, for so many times as long.
LONGER = 1.3
MOST_LONGER = 3
# Shares of the given seconds.
PARTS_SHARE = 0.35
SAMPLE_SHARE = 0.06
TRIAL_SHARE = 0.03
BURN_SHARE = 0.02
APPLY_SHARE = 0.08
SAMPLE_BATCHES = 16
# Reading a slow disk would fill the page cache for all later trials; compile_model takes a minute.
UNTRIED = {"cold_disk", "network_disk", "compile_model"}
LEAST_TIMES = 10  # that a validation, save or report must happen in a trial to be tried
PAIRS = 4
NUM_WINDOWS = 4  # of a trial
# Trials begin at this epoch, each at its own, because records that an earlier trial has read are in
# memory.
FIRST_EPOCH = 1000
RUN = 8  # neighbors that are read together, since they lie in one chunk or close on the disk
LARGEST_BYTES = 512 << 20
WRITERS: dict[str, packing.MakeWriter] = {
    "hdf5": hdf5_store.HDF5Writer,
    "lmdb": lmdb_store.LMDBWriter,
}

Compose = Callable[[Sequence[str]], Setting]  # makes a setting with these additional overrides


def diagnose(compose: Compose, seconds: float, say: Say) -> Diagnosis:
    """Measure, judge and try advice in about ``seconds``; slow steps take longer."""
    start = time.perf_counter()
    facts = gather_facts(compose(()), PARTS_SHARE * seconds, say)
    trials = _Trials(facts, compose, seconds, start + seconds, say)
    verdicts = trials.tried(verdicts_of(facts))
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
    return Diagnosis(
        facts=facts,
        cause="" if cause is None else cause.rule,
        limit=limit_of(facts, cause, good),
        verdicts=tuple(good),
        rejected=rejected,
        seconds=time.perf_counter() - start,
    )


def _rank(verdict: Verdict) -> tuple[bool, float]:
    """Rank data_is_fine first, then by gain, with a handicap for advice that changes learning."""
    handicap = 0.95 if verdict.learns else 1.0
    return verdict.rule != "data_is_fine", -verdict.gain * handicap


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
            and LEAST_TIMES * verdict.period_s <= TRIAL_SHARE * self._seconds
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
                # Again, as often as there is time. The first trial counts, too.
                best = min((by_rule[rule] for rule in self._tried), key=_rank)
                left_s = self._end - time.perf_counter()
                num_pairs = min(MOST_LONGER, int(left_s / (2 * self._run_s)))
                if num_pairs >= 1:
                    self._say(f"trying {best.rule} for longer")
                    setting, first = self._tried[best.rule]
                    settings, of_run = (self._before, setting), best.parts == RUN_PARTS
                    more = take_turns(
                        lambda side: self._rate(settings[side], of_run, LONGER), num_pairs
                    )
                    pairs = Pairs(first.before + more.before, first.after + more.after)
                    tried = replace(best, gain=pairs.gain, spread=pairs.spread, tried=True)
                    by_rule[best.rule] = tried
        return list(by_rule.values())

    def _try(self, verdict: Verdict, folder: str) -> Verdict:
        """Return the verdict with its measured gain, and what packing everything would take.

        A sample is packed in ``folder``.
        """
        repack, words = verdict.repack, [*verdict.overrides, *verdict.trial]
        if repack is not None and self._facts.storage is not None:
            self._say(f"packing a sample to try {verdict.rule}")
            os.mkdir(folder)
            num_records = self._facts.storage.num_records
            # Not more than the store has: epochs of few steps are slower, before and after packing.
            wanted = min(SAMPLE_BATCHES * self._facts.batch_size, num_records)
            path = f"{folder}/sample{ENDINGS[repack.output]}"
            record_s, size = write_sample(repack, path, wanted, SAMPLE_SHARE * self._seconds)
            pack_s = record_s * num_records / self._facts.num_cores
            verdict = replace(verdict, pack_s=pack_s, disk_bytes=size * num_records)
            words = [f"data={repack.output}", f"data.train={path}", f"data.val={path}", *words]
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
    if verdict.repack is not None:
        say("packing")
        pack_all(verdict.repack)
        note = f"packed: {', '.join(target for _, target in verdict.repack.paths.values())}"
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
    """Return the records per second of training, or of a run that validates, saves and reports.

    Training reads epochs that no other ``number`` reads.
    """
    if of_run:
        return run_rate(setting.config, setting.allowed, seconds + burn_in_s)
    with closing(setting.probe(NUM_WINDOWS, FIRST_EPOCH + number)) as probe:
        return probe.train(seconds, burn_in_s).records_per_s


def write_sample(repack: Repack, path: str, wanted: int, seconds: float) -> tuple[float, float]:
    """Pack evenly spread records in about ``seconds``, and repeat them up to ``wanted``.

    Return the seconds to pack a record, and the bytes of a packed one.
    """
    source = _input(repack, repack.targets["train"][0])
    prepare = Preparation(**repack.options)
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
    times = max(1, min(-(-wanted // num_different), LARGEST_BYTES // num_bytes))
    total = num_different * times
    writer = WRITERS[repack.output](path, fields=fields, num_records=total)
    try:
        for number in range(times):
            for chunk in chunks:
                writer.write(chunk.records, [f"{number}/{key}" for key in chunk.keys])
        changes: dict[str, Any] = {"fields": fields, "num_records": total, "options": {}}
        writer.close(replace(source.manifest, **changes, class_counts=()))
    finally:
        writer.abort()
    return record_s, num_bytes / num_different


def pack_all(repack: Repack) -> None:
    """Pack every split to its target."""
    for path, target in repack.paths.values():
        prepare = Preparation(**repack.options)
        work = packing.Packing(_input(repack, path), WRITERS[repack.output], target, prepare)
        pack_store.pack(work, None)


def _input(repack: Repack, path: str) -> Any:
    if repack.source == "folder":
        return folder.FolderInput(path, None, None, repack.follow_links)
    return store.StoreInput(path)
