"""The diagnosis: gather facts, apply all rules, try the most promising advice, and rank it."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from framework.commands.diagnose import compute_rules, loading_rules, run_rules
from framework.commands.diagnose.facts import DiagnosisFacts
from framework.commands.diagnose.measure_parts import Say, Setting, gather_facts
from framework.commands.diagnose.measure_run import run_rate
from framework.commands.diagnose.record_sample import pack_all, write_sample
from framework.commands.diagnose.rules import verdicts_of
from framework.commands.diagnose.step_parts import headline, shares_of, times
from framework.commands.diagnose.verdict import Verdict
from framework.errors import PacelineError
from framework.measure.statistics import Pairs, take_turns
from framework.system.stopping import scratch_folder

# A smaller gain does not count, because measurements cannot resolve it.
WORTH = 1.03
# Advice about computing without a certain gain names a cause if the model likes it so much.
LIKELY = 1.2
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
# If packing takes longer, `apply` packs a sample for so many seconds instead.
LONGEST_PACKING_S = 120.0
SAMPLE_PACKING_S = 20.0
# What waits for them does so whatever else would help.
REASONS = {"cold_disk", "network_disk", "swap", "opencv_threads"}
# Without a few slow records, training would be so many times as fast: they are its reason.
MOSTLY = 1.5
# They make every step faster, and no step is slow because of them.
TIPS = {"data_is_fine", "amp", "channels_last"}
# Reading a slow disk would fill the page cache for all later trials; compile_model takes a minute.
UNTRIED = {"cold_disk", "network_disk", "compile_model"}
# What happens only every so often is tried if it happens so many times in a trial.
LEAST_TIMES = 10
PAIRS = 4
MOST_RUNS = 100  # in the trials
NUM_WINDOWS = 4  # of a trial
# The first epoch of the trials. Each begins another one, whose records are not in memory because
# the trial before has read them.
FIRST_EPOCH = 1000

Compose = Callable[[Sequence[str]], Setting]  # makes a setting with these additional overrides
# Returns the records per second of a setting, from the seconds, the burn-in, and how many were
# measured before.
RateOf = Callable[[Setting, float, float, int], float]


@dataclass(frozen=True)
class Applied:
    """The best advice compared with the present settings. ``note`` says on which data."""

    verdict: Verdict
    comparison: Pairs
    note: str = ""


@dataclass(frozen=True)
class Diagnosis:
    facts: DiagnosisFacts
    cause: str  # the rule that names what limits training
    limit: str  # what limits training, in words
    verdicts: tuple[Verdict, ...]  # advice worth following, the best first
    rejected: tuple[Verdict, ...]  # advice without a certain gain, or impossible here
    seconds: float  # that the diagnosis took
    applied: Applied | None = None

    @property
    def best(self) -> Verdict | None:
        """Advice against the cause, or else the first that is worth following.

        If no advice is worth following, rejected advice against the cause is the most likely, but
        not what was tried and lost.
        """
        first = sorted(self.verdicts, key=lambda verdict: verdict.rule != self.cause)
        likely = [v for v in self.rejected if v.rule == self.cause and not v.failed and not v.lost]
        return next((v for v in (*first, *likely) if v.is_advice), None)


def diagnose(compose: Compose, seconds: float, say: Say) -> Diagnosis:
    """Measure, judge and try advice in about ``seconds``; slow steps take longer."""
    start = time.perf_counter()
    facts = gather_facts(compose(()), PARTS_SHARE * seconds, say)
    end = start + seconds
    verdicts = _Trials(facts, compose, seconds, end, say).tried(verdicts_of(facts))
    good = sorted((verdict for verdict in verdicts if _is_worth(verdict)), key=_rank)
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


def cause_of(
    facts: DiagnosisFacts, good: Sequence[Verdict], others: Sequence[Verdict]
) -> Verdict | None:
    """Return the verdict that names what limits training.

    It is the best verdict about the largest part of a step. If no advice against it gained, it is
    the verdict that the model likes best. If nothing explains the computing, data is fine.
    """
    largest = next(iter(shares_of(facts, good)))
    about = [verdict for verdict in good if is_cause_of(verdict, largest)]
    if about:
        # Packing gains most, but what is waited for is the reason.
        return next((verdict for verdict in about if _is_reason(verdict)), about[0])
    likely = [v for v in others if is_cause_of(v, largest) and not v.lost]
    if largest != "wait":
        likely = [verdict for verdict in likely if verdict.modeled >= LIKELY]
    fine = compute_rules.data_is_fine(facts) if largest != "wait" else None
    return max(likely, key=lambda verdict: verdict.modeled, default=fine)


def _is_reason(verdict: Verdict) -> bool:
    """Return whether a disk, swapping or a few slow records are why other things are slow."""
    return verdict.rule in REASONS or (verdict.rule == "slow_records" and verdict.gain >= MOSTLY)


def is_cause_of(verdict: Verdict, part: str) -> bool:
    """Return whether the verdict explains why a part of a step is slow."""
    return part in verdict.parts and verdict.rule not in TIPS


def limit_of(facts: DiagnosisFacts, cause: Verdict | None, good: Sequence[Verdict] = ()) -> str:
    """Return what limits training, in words: the largest part of a step, and its cause."""
    shares = shares_of(facts, good)
    text = headline(shares, facts.mostly_slowed)
    says = cause.says if cause else ""
    if next(iter(shares)) == "wait":
        text += f" Without it, training would be up to {times(facts.headroom)} as fast."
        says = says or loading_rules.waiting(facts)
    return f"{text} {says}".strip()


def _is_worth(verdict: Verdict) -> bool:
    """Return whether to show the advice. Advice that could be tried but was not is left out."""
    if verdict.rule == "data_is_fine":
        return True
    is_untried = verdict.rule in UNTRIED or verdict.period_s > 0  # or it was too rare for a trial
    is_certain = verdict.tried or is_untried or not verdict.can_try
    return is_certain and not verdict.failed and verdict.gain - verdict.spread >= WORTH


def _rank(verdict: Verdict) -> tuple[bool, float]:
    """Rank data_is_fine first, then by gain, with a handicap for advice that changes learning."""
    handicap = 0.95 if verdict.learns else 1.0
    return verdict.rule != "data_is_fine", -verdict.gain * handicap


class _Trials:
    """Trials of advice beside the present settings, until ``end`` in the seconds of the clock."""

    def __init__(
        self, facts: DiagnosisFacts, compose: Compose, seconds: float, end: float, say: Say
    ) -> None:
        self.facts = facts
        self.compose = compose
        self.end = end
        self.say = say
        self.sample_s = SAMPLE_SHARE * seconds
        self.trial_s = TRIAL_SHARE * seconds
        self.burn_in_s = BURN_SHARE * seconds
        self.run_s = 0.0  # what a run takes, with its start
        self.num_runs = 0
        self._before = compose(())
        self._last: dict[RateOf, float] = {}  # of the present settings
        self._settings: dict[str, Setting] = {}
        self._pairs: dict[str, Pairs] = {}

    def tried(self, verdicts: list[Verdict]) -> list[Verdict]:
        """Try the most promising advice, and the best of it for longer. Return all verdicts."""
        by_rule = {verdict.rule: verdict for verdict in verdicts}
        candidates = list(filter(self._can_try, verdicts))[:NUM_TRIALS]
        if not candidates or self._left_s <= 0:
            return verdicts
        with scratch_folder("paceline-diagnose-") as folder:
            for verdict in candidates:
                if self._is_enough(verdict):
                    break
                by_rule[verdict.rule] = self._tried(verdict, folder)
            if self._pairs:
                best = min((by_rule[rule] for rule in self._pairs), key=_rank)
                by_rule[best.rule] = self._longer(best)
        return list(by_rule.values())

    def _is_enough(self, verdict: Verdict) -> bool:
        """Return whether there is no time for this advice, or it is not worth a trial any more."""
        if not self._pairs:
            return False
        # The best advice is tried again, which takes two runs at least.
        is_late = self._left_s < 4 * self.run_s
        has_gained = any(pairs.gain >= WORTH for pairs in self._pairs.values())
        return is_late or (has_gained and verdict.gain < WORTH)

    def _tried(self, verdict: Verdict, folder: str) -> Verdict:
        """Return the verdict with the measured gain, or with the reason why it cannot be tried."""
        setting, prepared = self._prepared(verdict, folder)
        if setting is None:
            return prepared
        self.say(f"trying {verdict.rule}")
        rate_of = _rate_of(verdict)
        if rate_of not in self._last:
            self._last[rate_of] = self._rate(self._before, rate_of)
        try:
            rate = self._rate(setting, rate_of)
        except PacelineError as error:
            # What was tried in place of an action says nothing about the action.
            return prepared if verdict.trial else replace(prepared, failed=str(error))
        now = self._rate(self._before, rate_of)
        self._settings[verdict.rule] = setting
        self._pairs[verdict.rule] = Pairs((self._last[rate_of], now), (rate, rate))
        self._last[rate_of] = now
        return _measured(prepared, self._pairs[verdict.rule])

    def _can_try(self, verdict: Verdict) -> bool:
        is_rare = LEAST_TIMES * verdict.period_s > self.trial_s
        return verdict.has_trial and verdict.rule not in UNTRIED and not is_rare

    @property
    def _left_s(self) -> float:
        return self.end - time.perf_counter()

    def _rate(self, setting: Setting, rate_of: RateOf) -> float:
        start = time.perf_counter()
        self.num_runs += 1
        rate = rate_of(setting, self.trial_s, self.burn_in_s, self.num_runs)
        self.run_s = max(self.run_s, time.perf_counter() - start)
        return rate

    def _prepared(self, verdict: Verdict, folder: str) -> tuple[Setting | None, Verdict]:
        """Return a setting that follows the advice, and the verdict with what packing takes."""
        place = Path(folder) / verdict.rule
        place.mkdir()
        if verdict.repack is not None:
            self.say(f"packing a sample to try {verdict.rule}")
        try:
            return _trial_of(verdict, self.facts, self.compose, str(place), self.sample_s)
        except PacelineError as error:
            return None, replace(verdict, failed=str(error))

    def _longer(self, best: Verdict) -> Verdict:
        """Try the best advice again, as often as there is time. The first trial counts, too."""
        num_pairs = min(MOST_LONGER, int(self._left_s / (2 * self.run_s)))
        if num_pairs < 1:
            return best
        self.say(f"trying {best.rule} for longer")
        more = alternate(
            self._before,
            self._settings[best.rule],
            num_pairs,
            LONGER * self.trial_s,
            self.burn_in_s,
            self.num_runs,
            _rate_of(best),
        )
        first = self._pairs[best.rule]
        return _measured(best, Pairs(first.before + more.before, first.after + more.after))


def _measured(verdict: Verdict, pairs: Pairs) -> Verdict:
    return replace(verdict, gain=pairs.gain, spread=pairs.spread, tried=True)


def _trial_of(
    verdict: Verdict, facts: DiagnosisFacts, compose: Compose, folder: str, seconds: float
) -> tuple[Setting, Verdict]:
    """Return a setting that tries the advice, and the verdict with what packing all would take.

    A store is packed in ``folder`` for about ``seconds``, which makes a sample.
    """
    repack = verdict.repack
    if repack is None:
        words = (*verdict.overrides, *verdict.trial)
        return compose(words)._replace(threads=verdict.threads), verdict
    assert facts.storage is not None
    num_records = facts.storage.num_records
    # Not more than the store has: epochs of few steps are slower, before and after packing.
    wanted = min(SAMPLE_BATCHES * facts.settings.batch_size, num_records)
    sample = write_sample(repack, folder, wanted, seconds)
    data = [f"data={repack.output}", f"data.train={sample.path}", f"data.val={sample.path}"]
    packed = replace(
        verdict,
        pack_s=sample.record_s * num_records / facts.machine.num_cores,
        disk_bytes=sample.record_bytes * num_records,
    )
    return compose([*data, *verdict.overrides]), packed


def apply(diagnosis: Diagnosis, compose: Compose, seconds: float, say: Say) -> Diagnosis:
    """Compare the best advice with the present settings.

    A store is packed to where the advice says. If this takes too long, a sample is packed in a
    temporary folder instead.
    """
    verdict = diagnosis.best
    if verdict is None or not verdict.can_try:
        return diagnosis
    with scratch_folder("paceline-diagnose-") as folder:
        note = ""
        if verdict.repack is not None:
            say("packing")
        if verdict.pack_s > LONGEST_PACKING_S:
            after, _ = _trial_of(verdict, diagnosis.facts, compose, folder, SAMPLE_PACKING_S)
            note = f"on a sample: packing all takes about {verdict.pack_s / 60:.0f} minutes"
        else:
            if verdict.repack is not None:
                pack_all(verdict.repack)
                targets = [target for _, target in verdict.repack.paths.values()]
                note = f"packed: {', '.join(targets)}"
            after = compose(verdict.words)._replace(threads=verdict.threads)
        say(f"{verdict.rule} beside the present settings, {PAIRS} times each")
        each_s = APPLY_SHARE * seconds
        burn_in_s = BURN_SHARE * seconds
        rate_of = _rate_of(verdict)
        pairs = alternate(compose(()), after, PAIRS, each_s, burn_in_s, MOST_RUNS, rate_of)
    return replace(diagnosis, applied=Applied(verdict, pairs, note))


def _rate_of(verdict: Verdict) -> RateOf:
    """Return what measures a setting that follows the advice."""
    return _run_rate if verdict.parts == run_rules.PARTS else _training_rate


def _training_rate(setting: Setting, seconds: float, burn_in_s: float, number: int) -> float:
    with closing(setting.probe(NUM_WINDOWS, FIRST_EPOCH + number)) as probe:
        return probe.train(seconds, burn_in_s).records_per_s


def _run_rate(setting: Setting, seconds: float, burn_in_s: float, _: int) -> float:
    return run_rate(setting.config, setting.allowed, seconds + burn_in_s)


def alternate(
    before: Setting,
    after: Setting,
    num_pairs: int,
    seconds: float,
    burn_in_s: float,
    num_before: int,
    rate_of: RateOf = _training_rate,
) -> Pairs:
    """Measure the rate of both settings ``num_pairs`` times in turn, after ``num_before`` runs."""
    numbers = count(num_before + 1)

    def measure(side: int) -> float:
        return rate_of((before, after)[side], seconds, burn_in_s, next(numbers))

    return take_turns(measure, num_pairs)
