"""What limits a step, and which verdict names its cause: of a run, of ranks and of a script."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from framework.contracts.span import shares
from framework.diagnosis import data_rules, step_rules
from framework.diagnosis.facts import UNKNOWN, Facts, RankFacts, ScriptFacts, Verdict, gain, times
from framework.measure.statistics import Pairs

# How a headline calls a part.
TITLES = {
    "wait": "waiting for data",
    "copy": "copying and augmenting",
    "compute": "computing",
    **{name: name for name in step_rules.RUN_PARTS},
}
# They make every step faster, and no step is slow because of them.
TIPS = {"data_is_fine", "amp", "channels_last"}
WORTH = 1.03


@dataclass(frozen=True)
class Applied:
    """The best advice compared with the present settings. ``note`` says on which data."""

    verdict: Verdict
    comparison: Pairs
    note: str = ""


@dataclass(frozen=True)
class Diagnosis:
    facts: Facts
    cause: str  # the rule that names what limits training
    limit: str  # what limits training, in words
    verdicts: tuple[Verdict, ...]  # advice worth following, the best first
    rejected: tuple[Verdict, ...]  # advice without a certain gain, or impossible here
    seconds: float  # that the diagnosis took
    applied: Applied | None = None

    @property
    def best(self) -> Verdict | None:
        """Advice against the cause, or else the first that is worth following.

        If there is none, it is rejected advice against the cause, unless it lost its trial.
        """
        first = sorted(self.verdicts, key=lambda verdict: verdict.rule != self.cause)
        likely = [v for v in self.rejected if v.rule == self.cause and not v.failed and not v.lost]
        return next((v for v in (*first, *likely) if v.is_advice), None)


def verdicts_of(facts: Facts | RankFacts) -> list[Verdict]:
    """Return the verdicts of all rules, by predicted gain."""
    known: list[Verdict] = []
    if isinstance(facts, RankFacts):
        for rule in step_rules.RANK_RULES:
            known += [replace(each, modeled=each.gain, parts=("ranks",)) for each in rule(facts)]
    else:
        for rules, parts in ((data_rules.RULES, ("wait",)), *step_rules.RULES):
            for verdict in chain.from_iterable(rule(facts) for rule in rules):
                known.append(replace(verdict, modeled=verdict.gain, parts=verdict.parts or parts))
    return sorted(known, key=lambda verdict: -verdict.gain)


def shares_of(facts: Facts, tried: Sequence[Verdict] = ()) -> dict[str, float]:
    """Return the share of a step that each part takes, the largest first.

    Data takes what a step takes longer than computing and copying alone, and at least what advice
    that was ``tried`` has gained. What a run does beside its steps is shared out over them.
    """
    gains = [verdict.gain for verdict in tried if verdict.tried and verdict.parts == ("wait",)]
    wait = 1 - 1 / max(facts.headroom, *gains, 1.0)
    copy = min(facts.copy_share, 1 - wait)
    spans_s = {name: s for name, s in facts.compute_spans_s.items() if name not in TITLES}
    if not sum(spans_s.values()):
        spans_s = {"compute": 1.0}
    scale = (1 - wait - copy) / sum(spans_s.values())
    known = {"wait": wait, "copy": copy} | {name: scale * s for name, s in spans_s.items()}
    if facts.run is not None:
        of_run = facts.run.shares(facts.step_s)
        left = 1 - sum(of_run.values())
        known = {name: left * share for name, share in known.items()} | of_run
    return dict(sorted(known.items(), key=lambda item: -item[1]))


def limit_of(facts: Facts, cause: Verdict | None, good: Sequence[Verdict] = ()) -> str:
    """Return what limits training, in words: the largest part of a step, and its cause."""
    titles = dict(TITLES)
    if facts.mostly_slowed:
        titles["wait"] = "computing more slowly while data is read"
    known = {name: share for name, share in shares_of(facts, good).items() if share >= 0.05}
    first, *others = known
    limit = TITLES.get(first, "Computing").capitalize()
    if first == "wait":
        limit = "Data"
    takes = f"{titles.get(first, first)} takes {100 * known[first]:.0f} % of a step"
    text = f"{limit} limits training: {takes}"
    if others:
        rest = (f"{titles.get(name, name)} {100 * known[name]:.0f} %" for name in others)
        text += f" ({', '.join(rest)})"
    text += "."
    if first == "wait":
        text += f" Without it, training would be up to {times(facts.headroom)} as fast."
    if cause is not None:
        text += f" {cause.says}"
    elif first == "wait":
        text += f" {data_rules.waiting(facts)}"
    return text


def cause_of(facts: Facts, good: Sequence[Verdict], others: Sequence[Verdict]) -> Verdict | None:
    """Return the verdict that names what limits training: the best about the largest part.

    If no advice gained, it is what the model likes best. If nothing explains it, data is fine.
    """
    largest = next(iter(shares_of(facts, good)))
    about = [v for v in good if largest in v.parts and v.rule not in TIPS]
    # Packing gains most, but what is waited for is the reason.
    reasons = {"cold_disk", "network_disk", "swap", "opencv_threads"}
    for verdict in about:
        if verdict.rule in reasons or (verdict.rule == "slow_records" and verdict.gain >= 1.5):
            return verdict
    if about:
        return about[0]
    likely = [v for v in others if largest in v.parts and v.rule not in TIPS and not v.lost]
    fine = None
    if largest != "wait":
        likely = [verdict for verdict in likely if verdict.modeled >= 1.2]
        fine = next(step_rules.data_is_fine(facts), None)
    return max(likely, key=lambda verdict: verdict.modeled, default=fine)


def rank_cause(facts: RankFacts, verdicts: Sequence[Verdict]) -> Verdict | None:
    """Return the verdict that names what limits training; None if no rank or exchange does."""
    lost = 1 - 1 / verdicts[0].gain if verdicts else 0.0
    # If all ranks wait for data longer than for each other, data is the limit.
    waits_s = [span.median_s for name, span in facts.spans.items() if name in ("wait", "idle")]
    if lost < max(step_rules.LEAST_WAITING, min(waits_s, default=0.0) / facts.step_s):
        return None
    return verdicts[0]


def loading(facts: ScriptFacts) -> Iterator[Verdict]:
    """Detect too few or too many workers, and workers that are started anew in every epoch."""
    loader, cores = facts.loader, facts.num_cores
    if loader is None:
        return
    if loader.workers < cores and facts.headroom >= WORTH:
        maker = "the step's process makes"
        if loader.workers:
            maker = f"{loader.workers} workers make"
        yield Verdict(
            "more_workers",
            f"num_workers={loader.workers}: {maker} the items, on {cores} cores, and "
            f"{100 * facts.waiting:.0f} % of a step waits for them.",
            "Workers make items while the step computes, and each has a Python lock of its own.",
            gain(facts, workers=cores, start_s=0.0),
            edit=f"DataLoader(..., num_workers={cores}, persistent_workers=True)",
        )
    if loader.workers > cores:
        yield Verdict(
            "fewer_workers",
            f"num_workers={loader.workers}: they share {cores} cores with the step.",
            "More workers than cores only take turns, and cost memory and start-up time each.",
            UNKNOWN,
            edit=f"DataLoader(..., num_workers={cores})",
        )
    share = min(1.0, facts.load.start_s / max(facts.step_s, 1e-9))
    if facts.epochs >= 2 and share >= 0.05:
        yield Verdict(
            "persistent_workers",
            f"Every epoch starts {loader.workers} new workers: {facts.start_s:.2f} s until its "
            f"first batch, {100 * share:.0f} % of the epoch.",
            "Keep the workers from epoch to epoch.",
            gain(facts, start_s=0.0),
            edit="DataLoader(..., persistent_workers=True)",
        )


def dataset(facts: ScriptFacts) -> Iterator[Verdict]:
    """Detect images that are decoded too large, and items that are made again in every epoch."""
    items, loader = facts.items, facts.loader
    if items is None or facts.headroom < WORTH:
        return
    if items.decoded is not None and items.size is not None:
        side = min(items.decoded) / max(1, *items.size)
        left = 1 - items.decode_share * (1 - 1 / side**1.5)
        needed = 2 * max(items.size)
        if side >= data_rules.LARGE:
            yield Verdict(
                "smaller_images",
                f"Images of {items.decoded[0]} x {items.decoded[1]} pixels are decoded whole, "
                f"{1e3 * items.item_s * items.decode_share:.1f} ms each, and the items hold "
                f"{items.size[0]} x {items.size[1]}.",
                "Store the images at the size that the crop needs, or let the JPEG decoder scale.",
                gain(facts, load_s=left * facts.load.load_s),
                edit=f'image.draft("RGB", ({needed}, {needed})) after Image.open(...)',
            )
    if loader is not None and items.item_bytes and not items.refusal:
        read_s = 30e-6 + items.item_bytes / data_rules.GATHER_BYTES_PER_S  # 30 us a small read
        size = f"{items.num_items * items.item_bytes / 1e6:,.0f} MB"
        yield Verdict(
            "pack_items",
            f"Every epoch makes the same items again: {1e3 * items.item_s:.2f} ms each. Reading "
            "some of them twice gave the same bytes.",
            f"Pack them once ({size}), and train on the store.",
            gain(facts, load_s=min(facts.step_records * read_s, facts.load.load_s)),
            edit=pack_words(loader.dataset),
        )


def pack_words(dataset: str) -> str:
    """Return the command that packs the items of a Dataset; its arguments stand for the dots."""
    block = f"{{_target_: {dataset}, ...}}"
    return f"paceline pack input=dataset 'input.dataset={block}' output.path=items.h5"


def computing(facts: ScriptFacts) -> Iterator[Verdict]:
    """Detect slow Python, and threads that wait for each other or for cores."""
    cores = facts.num_cores
    if facts.lines and facts.lines[0].share >= 0.2 and not facts.data_limits:
        line = facts.lines[0]
        place = f"{step_rules.place_of(line)} in {line.function}"
        yield Verdict(
            "python_lines",
            f"{place} takes {100 * line.share:.0f} % of a step, outside of torch: {line.text}",
            "Python and what it calls run on one core here, while the device and other cores wait.",
            UNKNOWN,
            edit="operators on whole batches, or do it in the Dataset, where workers share it",
        )
    if facts.num_threads > cores and facts.gpu is None:
        yield Verdict(
            "fewer_threads",
            f"Torch uses {facts.num_threads} threads for an operator on {cores} cores.",
            "Threads that share a core wait for each other at the end of every operator.",
            UNKNOWN,
            edit=f"torch.set_num_threads({cores}), or OMP_NUM_THREADS={cores}",
        )
    if facts.others_cores >= 0.25 * cores and facts.gpu is None:
        yield Verdict(
            "other_programs",
            f"Other programs kept {facts.others_cores:.1f} of {cores} cores busy.",
            "Threads of an operator wait for their turn, and for each other. Figures are rough.",
            UNKNOWN,
            edit="OMP_NUM_THREADS=1 before the command, or run it alone",
        )


def copying_and_validating(facts: ScriptFacts) -> Iterator[Verdict]:
    """Detect batches that are copied from pageable memory, and frequent validation."""
    copy = shares(facts.spans).get("copy", 0.0)
    if facts.gpu and facts.loader and not facts.loader.pins and copy >= 0.05:
        yield Verdict(
            "pinned_memory",
            f"Copying to the GPU takes {100 * copy:.0f} % of a step, from pageable memory.",
            "Copy from page-locked memory, while the GPU still computes.",
            1 / (1 - copy / 2),
            edit="DataLoader(..., pin_memory=True) and batch.to(device, non_blocking=True)",
        )
    whole_s = facts.step_s * facts.steps + facts.validation_s + facts.outside_s
    share = facts.validation_s / max(whole_s, 1e-9)
    if share >= 0.3:
        yield Verdict(
            "rarer_validation",
            f"Validation takes {100 * share:.0f} % of the time.",
            "Validate half as often, or give the validation DataLoader workers too.",
            1 / (1 - share / 2),
            edit="validate in every second epoch",
        )


def script_verdicts(facts: ScriptFacts) -> list[Verdict]:
    """Return advice for a script that is worth following, the most promising first."""
    if not facts.steps:
        return []
    rules = (loading, dataset, computing, copying_and_validating)
    verdicts = chain.from_iterable(rule(facts) for rule in rules)
    worth = [v for v in verdicts if v.gain >= WORTH or v.gain == UNKNOWN]
    worth.sort(key=lambda verdict: -verdict.gain)
    if not facts.data_limits:  # what makes figures of computing rough comes first
        worth.sort(key=lambda verdict: verdict.rule not in ("fewer_threads", "other_programs"))
    return worth


def script_limit(facts: ScriptFacts) -> str:
    """Return the largest part of a script's step, and what removing the waiting would win."""
    if not facts.steps:
        return "No training step was seen: no DataLoader, backward pass and optimizer in turn."
    largest = f"{facts.largest} takes {100 * shares(facts.spans)[facts.largest]:.0f} % of a step"
    most = f"up to {times(facts.headroom, 2)} as fast if no step waited"
    if facts.data_limits:
        return f"Data limits training: {largest} ({most})."
    if facts.waiting > 1 - 1 / WORTH:
        waits = f"{100 * facts.waiting:.0f} % waits for data ({most})"
        return f"Computing limits training: {largest}, and {waits}."
    return f"Computing limits training: {largest}. Data is not the problem."
