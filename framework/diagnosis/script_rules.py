"""Rules about a watched script: what limits its steps, and what to change in its code."""

from collections.abc import Iterator

from framework.contracts.span import shares
from framework.diagnosis.data_rules import GATHER_BYTES_PER_S, LARGE
from framework.diagnosis.facts import ScriptFacts, gain
from framework.diagnosis.findings import UNKNOWN, Verdict
from framework.diagnosis.step_rules import place_of

WORTH = 1.03
GATHER_S = 30e-6  # of a small read
# If validation, or starting an epoch, takes a smaller share of the time, it is not worth advice.
OFTEN = 0.3
STARTS = 0.05
SLOW_COPY = 0.05
BUSY = 0.25  # if other programs keep a larger share of the cores busy, the figures are rough
LINE = 0.2  # of a step; a line of Python with less is not worth advice


def loading(facts: ScriptFacts) -> Iterator[Verdict]:
    """Detect too few or too many workers, and workers that are started anew in every epoch."""
    loader, cores = facts.loader, facts.num_cores
    if loader is None:
        return
    if loader.workers < cores and facts.headroom >= WORTH:
        maker = f"{loader.workers} workers make" if loader.workers else "the step's process makes"
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
    share = min(1.0, facts.start_step_s / max(facts.step_s, 1e-9))
    if facts.epochs >= 2 and share >= STARTS:
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
        if side >= LARGE:
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
        load_s = facts.step_records * (GATHER_S + items.item_bytes / GATHER_BYTES_PER_S)
        size = f"{items.num_items * items.item_bytes / 1e6:,.0f} MB"
        yield Verdict(
            "pack_items",
            f"Every epoch makes the same items again: {1e3 * items.item_s:.2f} ms each. Reading "
            "some of them twice gave the same bytes.",
            f"Pack them once ({size}), and train on the store.",
            gain(facts, load_s=min(load_s, facts.load.load_s)),
            edit=pack_words(loader.dataset),
        )


def pack_words(dataset: str) -> str:
    """Return the command that packs the items of a Dataset; its arguments stand for the dots."""
    block = f"{{_target_: {dataset}, ...}}"
    return f"paceline pack input=dataset 'input.dataset={block}' output.path=items.h5"


def computing(facts: ScriptFacts) -> Iterator[Verdict]:
    """Detect slow Python, and threads that wait for each other or for cores."""
    cores = facts.num_cores
    if facts.lines and facts.lines[0].share >= LINE and not facts.data_limits:
        line = facts.lines[0]
        yield Verdict(
            "python_lines",
            f"{place_of(line)} in {line.function} takes {100 * line.share:.0f} % of a step, "
            f"outside of torch: {line.text}",
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
    if facts.others_cores >= BUSY * cores and facts.gpu is None:
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
    if facts.gpu and facts.loader and not facts.loader.pins and copy >= SLOW_COPY:
        yield Verdict(
            "pinned_memory",
            f"Copying to the GPU takes {100 * copy:.0f} % of a step, from pageable memory.",
            "Copy from page-locked memory, while the GPU still computes.",
            1 / (1 - copy / 2),
            edit="DataLoader(..., pin_memory=True) and batch.to(device, non_blocking=True)",
        )
    whole_s = facts.step_s * facts.steps + facts.validation_s + facts.outside_s
    share = facts.validation_s / max(whole_s, 1e-9)
    if share >= OFTEN:
        yield Verdict(
            "rarer_validation",
            f"Validation takes {100 * share:.0f} % of the time.",
            "Validate half as often, or give the validation DataLoader workers too.",
            1 / (1 - share / 2),
            edit="validate in every second epoch",
        )


RULES = (loading, dataset, computing, copying_and_validating)
