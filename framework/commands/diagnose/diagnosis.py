"""The diagnosis: facts, the verdicts of all rules, the most promising ones tried, ranked by what they bring."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from framework.commands.diagnose import compute_rules as computing
from framework.commands.diagnose import loading_rules as loading
from framework.commands.diagnose import storage_rules as storing
from framework.commands.diagnose.device_syncs import Sync, find_syncs
from framework.commands.diagnose.facts import DiagnosisFacts
from framework.commands.diagnose.measure_parts import Setting, gather
from framework.commands.diagnose.record_sample import pack_all, write_sample
from framework.commands.diagnose.trials import Comparison, alternate, beside
from framework.commands.diagnose.verdict import Verdict
from framework.errors import PacelineError
from framework.system.stopping import scratch_folder

ABOUT_DATA = {rule.__name__ for rule in (*loading.RULES, *storing.RULES)}
RULES = (*loading.RULES, *storing.RULES, *computing.RULES)
WORTH = 1.03  # a gain below it is none: the least difference that measuring calls one
NUM_TRIALS = 4
LONGER = 1.3  # times as long is the best one tried, three times over
PARTS_SHARE, SAMPLE_SHARE, TRIAL_SHARE, BURN_SHARE = 0.7, 0.08, 0.035, 0.02  # of the seconds given
SAMPLE_BATCHES = 16
APPLY_SHARE = 0.08
LONGEST_PACKING_S, SAMPLE_PACKING_S = 120.0, 20.0
UNTRIED = {
    "stage_ram",
    "compile_model",
}  # trying the first would warm the cache for all that follows; the second compiles for a minute
PAIRS = 4

Compose = Callable[[Sequence[str]], Setting]  # overrides -> what training with them too would run
Say = Callable[[str], None]


@dataclass(frozen=True)
class Applied:
    """The best advice run beside the present settings. ``note``: on what, where that is not the whole set."""

    verdict: Verdict
    comparison: Comparison
    note: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """``cause``: the rule that names what limits; ``verdicts``: worth following, the best first; ``rejected``: tried, and no sure gain, or
    not possible here (``failed``).
    """

    facts: DiagnosisFacts
    cause: str
    limit: str
    verdicts: tuple[Verdict, ...]
    rejected: tuple[Verdict, ...]
    syncs: tuple[Sync, ...]
    seconds: float
    applied: Applied | None = None

    @property
    def best(self) -> Verdict | None:
        """The advice that promises most: what holds, else what mends the cause, if only trials were not so rough. None: there is none."""
        likely = [
            verdict
            for verdict in self.rejected
            if verdict.rule == self.cause and not verdict.failed
        ]
        return next(
            (verdict for verdict in (*self.verdicts, *likely) if verdict.words or verdict.edit),
            None,
        )


def verdicts_of(facts: DiagnosisFacts) -> list[Verdict]:
    """What every rule says, by predicted gain."""
    said = [verdict for rule in RULES if (verdict := rule(facts)) is not None]
    found = [replace(verdict, modeled=verdict.gain) for verdict in said]
    return sorted(found, key=lambda verdict: -verdict.gain)


def cause_of(
    facts: DiagnosisFacts, good: Sequence[Verdict], others: Sequence[Verdict]
) -> Verdict | None:
    """The verdict that names what limits: the best about data that holds; else that data is fine; else what the model puts first."""
    held = next((verdict for verdict in good if verdict.rule in ABOUT_DATA), None)
    if held is not None or not facts.data_limits:
        return held or computing.data_is_fine(facts)
    likely = sorted(
        (verdict for verdict in others if verdict.rule in ABOUT_DATA),
        key=lambda verdict: -verdict.modeled,
    )
    return next(iter(likely), None)


def limit_of(facts: DiagnosisFacts, cause: Verdict | None) -> str:
    """What limits, in one sentence."""
    says = loading.waiting(facts) if cause is None else cause.says
    if cause is not None and cause.rule == "data_is_fine":
        return f"{says}."
    most = f"at most {100 * (facts.headroom - 1):.0f} % to win, up to {facts.rates.whole * facts.headroom:,.0f} records/s"
    return f"Data limits ({most}): {says}." if facts.data_limits else f"Data limits: {says}."


def diagnose(compose: Compose, seconds: float, say: Say) -> Diagnosis:
    """Measure, judge, try. ``seconds``: for measuring, half a minute say; slow steps may take longer."""
    start = time.perf_counter()
    setting = compose(())
    facts = gather(setting, PARTS_SHARE * seconds, say)
    say("calls that wait for the device")
    syncs = _syncs(setting)
    verdicts = _tried(verdicts_of(facts), facts, compose, seconds, say)
    good = sorted((verdict for verdict in verdicts if _holds(verdict)), key=_rank)
    rejected = tuple(v for v in verdicts if v not in good)
    cause = cause_of(facts, good, rejected)
    if (
        cause is not None and cause.rule in ABOUT_DATA
    ):  # tried, and better: then data is not fine, whatever was measured before
        good = [verdict for verdict in good if verdict.rule != "data_is_fine"]
    took_s = time.perf_counter() - start
    return Diagnosis(
        facts,
        "" if cause is None else cause.rule,
        limit_of(facts, cause),
        tuple(good),
        rejected,
        tuple(syncs),
        took_s,
    )


def _holds(verdict: Verdict) -> bool:
    """Whether it is worth saying. What could have been tried, but was not among the most promising, is not."""
    if verdict.rule == "data_is_fine":
        return True
    sure = verdict.tried or verdict.rule in UNTRIED or not verdict.words
    return sure and not verdict.failed and verdict.gain - verdict.spread >= WORTH


def _rank(verdict: Verdict) -> tuple[bool, float]:
    """That data is fine is said first; then by gain, what is as it was learned before what is not, where it is about as good."""
    return verdict.rule != "data_is_fine", -verdict.gain * (0.95 if verdict.learns else 1.0)


def _syncs(setting: Setting) -> list[Sync]:
    probe = setting.probe()
    try:
        return find_syncs(probe)
    finally:
        probe.close()


def _tried(
    verdicts: list[Verdict], facts: DiagnosisFacts, compose: Compose, seconds: float, say: Say
) -> list[Verdict]:
    """The same, the most promising ones with the gain that a short trial found; the best of those after a longer one."""
    can = [v for v in verdicts if v.words and v.rule not in UNTRIED][:NUM_TRIALS]
    found = {verdict.rule: verdict for verdict in verdicts}
    with scratch_folder("paceline-diagnose-") as folder:
        settings: dict[str, Setting] = {}
        for verdict in can:
            place = Path(folder) / verdict.rule
            place.mkdir()
            say(f"making ready to try {verdict.rule}")
            try:
                settings[verdict.rule], pack_s = _setting(
                    verdict, facts, compose, str(place), SAMPLE_SHARE * seconds
                )
                found[verdict.rule] = replace(verdict, pack_s=pack_s)
            except PacelineError as error:
                found[verdict.rule] = replace(verdict, failed=str(error))
        if not settings:
            return verdicts
        say(f"trying {', '.join(settings)}")
        before, short, burn = compose(()), TRIAL_SHARE * seconds, BURN_SHARE * seconds
        for rule, comparison in zip(
            settings, beside(before, list(settings.values()), short, burn), strict=True
        ):
            found[rule] = replace(
                found[rule], gain=comparison.gain, spread=comparison.spread, tried=True
            )
        best = min((found[rule] for rule in settings), key=_rank)
        say(f"trying {best.rule} for longer")
        longer = alternate(before, settings[best.rule], 3, LONGER * short, burn)
        found[best.rule] = replace(best, gain=longer.gain, spread=longer.spread)
    return list(found.values())


def _setting(
    verdict: Verdict, facts: DiagnosisFacts, compose: Compose, folder: str, seconds: float
) -> tuple[Setting, float]:
    """(What trying the advice would run: on a sample, where a store has to be packed first; seconds that packing all would take)."""
    words, repack, pack_s = list(verdict.overrides), verdict.repack, 0.0
    if repack is not None:
        assert facts.storage is not None
        num_records = facts.storage.num_records
        # never more than the store has: epochs of few steps are slower, and so will be those of what is packed
        sample = write_sample(
            repack, folder, min(SAMPLE_BATCHES * facts.settings.batch_size, num_records), seconds
        )
        words = [
            f"data={repack.output}",
            f"data.train={sample.path}",
            f"data.val={sample.path}",
            *words,
        ]
        pack_s = sample.record_s * num_records / facts.machine.num_cores
    return compose(words), pack_s


def apply(found: Diagnosis, compose: Compose, seconds: float, say: Say) -> Diagnosis:
    """The best advice beside the present settings, in turn. A store that it wants is packed, all of it, to where the advice says; where
    that would take more than two minutes, a sample of it in a temporary place.
    """
    verdict = found.best
    if verdict is None or not verdict.words:
        return found
    with scratch_folder("paceline-diagnose-") as folder:
        after, note = _ready(verdict, found.facts, compose, folder, say)
        say(f"{verdict.rule} beside the present settings, {PAIRS} times each")
        comparison = alternate(
            compose(()), after, PAIRS, APPLY_SHARE * seconds, BURN_SHARE * seconds
        )
    return replace(found, applied=Applied(verdict, comparison, note))


def _ready(
    verdict: Verdict, facts: DiagnosisFacts, compose: Compose, folder: str, say: Say
) -> tuple[Setting, str]:
    """(What following the advice runs, what there is to say about it)."""
    if verdict.repack is None:
        return compose(verdict.words), ""
    say("packing")
    if verdict.pack_s > LONGEST_PACKING_S:
        setting, _ = _setting(verdict, facts, compose, folder, SAMPLE_PACKING_S)
        return setting, f"on a sample: packing all takes about {verdict.pack_s / 60:.0f} minutes"
    pack_all(verdict.repack)
    return compose(verdict.words), "packed: " + ", ".join(
        target for _, target in verdict.repack.paths.values()
    )
