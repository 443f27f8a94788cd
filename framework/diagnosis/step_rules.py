"""Rules about computing, the user's own Python, and what a run does beside its steps."""

import math
import os
from collections.abc import Iterator
from dataclasses import replace

from framework.diagnosis.facts import (
    COMPUTING,
    Facts,
    Sync,
    computing_gain,
    gain,
    times_per_step,
)
from framework.diagnosis.findings import Verdict
from framework.measure.stack_sampler import PythonLine

MOSTLY = 0.6  # computing faster shows only if computing takes a larger share of a step
FINE = 1.2  # with a smaller headroom, data does not limit training, although advice may gain
FIXED_SHARE = 0.25  # of a step; less that does not grow with the batch is not worth advice
TINY = 8  # records; the fixed cost of a step with fewer may be most of it
# How many times as large a batch may become.
MOST_LARGER = 8
MOST_LARGER_TINY = 64
# What a wait for a GPU and the launches after it take at least. Assumed; no GPU measured it.
SYNC_S = 2e-5
SYNC_SHARE = 0.05  # of a step; less is not worth advice
MOST_SYNC_SHARE = 0.9
PYTHON_SHARE = 0.15  # of a step, or of preparing a record; Python that takes less is no cause
MOST_GAIN = 100.0  # that removing Python is said to bring: no measurement resolves what is left
BESIDE_SHARE = 0.05  # of the run; less is not worth advice
TARGET_SHARE = 0.03  # that the advised interval leaves
BESIDE = ("validating", "saving", "reporting")
# By part: the spans that its Python slows, and what to write in its place.
PYTHON_SLOWS = {
    "model": ("compute", "forward", "backward"),
    "objective": ("compute", "forward"),
    "augment": ("copy",),
}
OTHER_THAN_PYTHON = {
    "model": "Use operators on whole tensors in place of loops over elements, or compile=true.",
    "objective": "Use operators on whole tensors, and return tensors in place of .item().",
    "augment": "Change the whole batch at once, with operators on [B, C, H, W].",
}


def data_is_fine(facts: Facts) -> Iterator[Verdict]:
    """Detect a run that no change to the data can make much faster."""
    if facts.headroom <= FINE:
        percent = max(1, round(100 * (facts.headroom - 1)))
        yield Verdict(
            "data_is_fine",
            f"Data is not your problem: at most {percent} % to win. Repeating one batch does "
            f"{facts.compute:,.0f} records/s, training {facts.whole:,.0f}.",
            "Change the model, its precision or the batch size; nothing about data can win more.",
            facts.headroom,
        )


def operators(facts: Facts) -> Iterator[Verdict]:
    """Detect computing that is slow by its precision, its layout or its many small kernels."""
    computing = f"Computing takes {100 * facts.computing_share:.0f} % of the step"
    if facts.computing_share <= MOSTLY:
        return
    if facts.precision == "fp32" and (facts.cuda or facts.bf16):
        dtype = "bf16" if facts.bf16 else "fp16"
        yield Verdict(
            "amp",
            f"{computing}, in single precision.",
            f"Compute in {dtype}, which {facts.gpu or 'this processor'} multiplies faster.",
            computing_gain(facts, 1.5 if facts.cuda else 1.2),
            ("precision=amp", f"precision.dtype={dtype}"),
            learns=True,
        )
    if facts.convolutional:
        yield Verdict(
            "channels_last",
            f"{computing}, with each channel of an image in a plane of its own (channels first).",
            "Store the channels of a pixel together, which most kernels process faster.",
            computing_gain(facts, 1.1),
            ("channels_last=true",),
            learns=True,
        )
    fixed = facts.fixed_share
    if facts.cuda and not facts.compiled and fixed >= FIXED_SHARE:
        yield Verdict(
            "compile_model",
            f"{100 * fixed:.0f} % of a step's computation does not grow with the batch: the host "
            "launches many small kernels.",
            "Let torch.compile fuse the kernels; the first step of each batch size takes a minute.",
            computing_gain(facts, 1 / (1 - fixed / 2)),
            ("compile=true",),
            learns=True,
        )


def larger_batch(facts: Facts) -> Iterator[Verdict]:
    """Detect that much of a step does not depend on the number of records."""
    fixed, size = facts.fixed_share, facts.batch_size
    is_tiny = size < TINY and fixed > MOSTLY  # such a fixed cost slows loading as well
    if fixed < FIXED_SHARE or not (is_tiny or facts.computing_share > MOSTLY):
        return
    of_python = facts.python.get("model", 0.0) + facts.python.get("objective", 0.0)
    most = (MOST_LARGER_TINY if size < TINY else MOST_LARGER) * size
    if facts.storage is not None:
        most = min(most, facts.storage.num_records)
    if of_python > fixed / 2 or 2 * size > most:  # or the fixed cost is Python of the user
        return
    factor = 2  # doubled until the fixed cost is a small share of a step
    while 2 * factor * size <= most and fixed / (fixed + (1 - fixed) * factor) > FIXED_SHARE:
        factor *= 2
    yield Verdict(
        "larger_batch",
        f"{100 * fixed:.0f} % of computing a step does not depend on its batch size of {size}.",
        f"Use batches of {factor * size} records, and try to scale optim.lr by up to {factor}.",
        computing_gain(facts, factor / (fixed + (1 - fixed) * factor)),
        (f"batch_size={factor * size}",),
        learns=True,
        parts=(*COMPUTING, "wait", "copy") if is_tiny else (),
    )


def synchronizations(facts: Facts) -> Iterator[Verdict]:
    """Detect code of the user that makes the host wait for the GPU within a step."""
    count = sum(sync.count for sync in facts.syncs)
    share = count * SYNC_S / facts.step_s
    if facts.cuda and share >= SYNC_SHARE:
        first = facts.syncs[0]
        yield Verdict(
            "synchronizations",
            f"{count} calls in a step make the host wait for {facts.gpu}, which then idles "
            f"until new work arrives; most of them are {first.call} in {place_of(first)}.",
            "Leave numbers on the device: return tensors, and use torch.where in place of an if.",
            1 / (1 - min(share, MOST_SYNC_SHARE)),
            edit=f"{place_of(first)} anew: {first.text}",
        )


def python_in_step(facts: Facts) -> Iterator[Verdict]:
    """Detect that Python of the model, the objective or the augment takes much of a step.

    It also keeps its lock from the threads that prepare batches.
    """
    batch_size, step_s = facts.batch_size, facts.step_s
    busy_s = step_s / facts.headroom  # of a step that does not wait
    for part, spans in PYTHON_SLOWS.items():
        of_busy = facts.python.get(part, 0.0)
        share = of_busy / facts.headroom
        if share < PYTHON_SHARE:
            continue
        rest_s = busy_s * (1 - of_busy)
        if part == "augment" and not facts.cuda and "copy" in facts.spans_s:
            # What was measured alone neither copies nor augments. Beside a loader, both take longer
            # than alone.
            copy_s = facts.spans_s["copy"] - facts.compute_spans_s.get("copy", 0.0)
            rest_s = batch_size / facts.compute + max(0.0, copy_s - of_busy * busy_s)
        left_s = max(min(busy_s, rest_s), busy_s / MOST_GAIN)
        after_s = left_s + min(step_s - busy_s, batch_size / facts.loader_rate)
        if facts.load is not None:
            after_s = max(after_s, replace(facts.load, compute_s=left_s).step_s)
        where, edit = _line_of(facts, part)
        yield Verdict(
            f"python_in_{part}",
            f"Python code of the {part} takes {100 * share:.0f} % of a step, outside of the "
            f"operators that it calls{where}.",
            OTHER_THAN_PYTHON[part],
            step_s / min(step_s, after_s),
            edit=edit,
            parts=spans,
        )


def python_in_transform(facts: Facts) -> Iterator[Verdict]:
    """Detect that the transform's or Dataset's own Python takes much of preparing a record."""
    share = facts.function_share
    if not facts.has_function or not facts.slow_rate or share < PYTHON_SHARE:
        return
    is_dataset = facts.storage is not None and facts.storage.form == "dataset"
    where, edit = _line_of(facts, "transform")
    yield Verdict(
        "python_in_transform",
        f"Python code of the {'Dataset' if is_dataset else 'transform'} takes "
        f"{100 * share:.0f} % of preparing a record{where}.",
        "Use NumPy, OpenCV or torch on whole images, or transform=..., or augment=... on a GPU.",
        gain(facts, load_s=facts.load_s * (1 - share)),
        edit=edit,
        parts=("wait",),
    )


def _line_of(facts: Facts, part: str) -> tuple[str, str]:
    """Return the largest line of a part, as the end of a sentence, and how to change it."""
    line = next((line for line in facts.lines if line.part == part), None)
    if line is None:
        return "", f"the {part} anew, without Python loops"
    place = place_of(line)
    return f", most of it in {place} ({line.function})", f"{place} anew: {line.text}"


def place_of(line: PythonLine | Sync) -> str:
    """Return ``file:line``, from the present folder."""
    return f"{os.path.relpath(line.file)}:{line.line}"


def beside_steps(facts: Facts) -> Iterator[Verdict]:
    """Detect that validating, saving or reporting takes much of the run."""
    run, step_s = facts.run, facts.step_s
    if run is None:
        return
    shares, costs_s = run.shares(step_s), run.costs_s
    run_s = step_s + math.fsum(costs_s.values())  # a step, with what the run does beside it
    takes = {name: f"takes {100 * share:.0f} % of the run:" for name, share in shares.items()}
    beside = f"beside {1e3 * step_s:,.1f} ms a step"
    target = f"which takes less than {100 * TARGET_SHARE:.0f} %"

    def gain_of(saved_s: float) -> float:
        return run_s / max(run_s - saved_s, step_s)

    if run.validate_every is not None and shares["validating"] >= BESIDE_SHARE:
        cost_s = run.validate_s + run.save_s + run.weights_s  # each is followed by a save
        every = _interval(cost_s, step_s)
        when = f"every {run.validate_every:,.0f} steps"
        if run.validate_every == run.epoch_steps:
            when = f"every epoch of {run.epoch_steps:,} steps"
        yield Verdict(
            "frequent_validation",
            f"Validating {takes['validating']} {1e3 * run.validate_s:,.0f} ms {when}, {beside}.",
            f"Validate every {every:,} steps, {target}.",
            gain_of(cost_s / run.validate_every - cost_s / every),
            (f"validate_every={every}",),
            period_s=cost_s + run.validate_every * step_s,
        )
    every = _interval(run.save_s, step_s)
    often = {key: steps for key, steps in run.save_every.items() if steps < every}
    if often and shares["saving"] >= BESIDE_SHARE:
        steps_per = {"checkpoint.every_epochs": run.epoch_steps, "checkpoint.every_s": 1 / step_s}
        keys = ", ".join(f"{key} every {steps:,.0f} steps" for key, steps in often.items())
        yield Verdict(
            "frequent_saving",
            f"Saving {takes['saving']} {1e3 * run.save_s:,.0f} ms ({keys}), {beside}.",
            f"Save every {every:,} steps, {target}. A run that is killed repeats the steps since "
            "the last save.",
            gain_of(costs_s["saving"] - run.save_s / every),
            tuple(f"{key}={math.ceil(every / steps_per.get(key, 1))}" for key in often),
            period_s=1 / run.saves_per_step * run_s,
        )
    if shares["reporting"] >= BESIDE_SHARE:
        cost_s = math.fsum(run.report_s.values())
        every = min(_interval(cost_s, step_s), run.epoch_steps)
        left_s = cost_s * times_per_step(every, run.epoch_steps)
        slowest = max(run.report_s, key=lambda name: run.report_s[name])
        can_be_rarer = every > run.report_every
        yield Verdict(
            "chatty_sinks",
            f"Writing reports {takes['reporting']} {1e3 * cost_s:,.1f} ms every "
            f"{run.report_every:,} steps, {beside}. {100 * run.report_s[slowest] / cost_s:.0f} % "
            f"of it is sink={slowest}.",
            f"Report every {every:,} steps, which takes {100 * left_s / (step_s + left_s):.0f} %.",
            gain_of(costs_s["reporting"] - left_s),
            (f"report_every={every}",) if can_be_rarer else (),
            period_s=1 / run.reports_per_step * run_s,
            action="" if can_be_rarer else f"leave out sink={slowest}",
        )


def _interval(cost_s: float, step_s: float) -> int:
    """Return the steps between two of ``cost_s`` that leave the target share, in two digits."""
    least = max(cost_s / (TARGET_SHARE * step_s), 1.0)
    digits = 10 ** max(0, math.floor(math.log10(least)) - 1)
    return max(1, math.ceil(least / digits) * digits)


COMPUTE_RULES = (data_is_fine, larger_batch, operators, synchronizations)
PYTHON_RULES = (python_in_step, python_in_transform)
BESIDE_RULES = (beside_steps,)
