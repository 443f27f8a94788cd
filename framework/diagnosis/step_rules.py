"""Rules about computing, the user's Python, the machine, ranks, and the work beside steps."""

import math
import os
from collections.abc import Iterator
from dataclasses import replace

from framework.cli.tables import plural
from framework.diagnosis.code_lines import Sync
from framework.diagnosis.facts import (
    COMPUTING,
    LEAST_CORES,
    Facts,
    RankFacts,
    Verdict,
    gain,
    times_per_step,
)
from framework.measure.host import NUM_THREADS
from framework.measure.stack_sampler import PythonLine

MOSTLY = 0.6  # computing faster shows only if computing takes a larger share of a step
FIXED_SHARE = 0.25  # of a step; less that does not grow with the batch is not worth advice
TINY = 8  # records; the fixed cost of a step with fewer may be most of it
PYTHON_SHARE = 0.15  # of a step, or of preparing a record; Python that takes less is no cause
RUN_SHARE = 0.05  # of the run; less is not worth advice
TARGET_SHARE = 0.03  # that the advised interval leaves
RUN_PARTS = ("validating", "saving", "reporting")  # what a run does between its steps
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
LEAST_GAIN = 1.1  # a smaller measured gain may be chance
BUSY_CORES = 0.3  # that other programs or other machines keep busy are worth naming
THROTTLED = 0.1  # of the periods of a CPU quota; if fewer are cut short, it hardly matters
LEAST_OF_RANKS = 0.03  # of a step of several ranks; less is not worth advice
LEAST_WAITING = 0.1  # ranks may take turns in being last by chance; more needs an explanation
UNEVEN = 1.1  # a rank with so many times the work of the mean one is late because of it
WHERE = {
    "wait": "Look at its disk, its network and its host's free cores.",
    "copy": "Look at the link between its host and its device, and at what augments there.",
    "report": "Look at what only this rank does at reports: sinks, watchers, pictures.",
}
COMPUTES = "Look at code that asks for its rank, other programs on its cores, and a hotter device."


def data_is_fine(facts: Facts) -> Iterator[Verdict]:
    """Detect a run that no change to the data can make much faster."""
    if facts.headroom <= 1.2:
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
    if facts.precision == "fp32" and (facts.gpu or facts.bf16):
        dtype = "bf16" if facts.bf16 else "fp16"
        yield Verdict(
            "amp",
            f"{computing}, in single precision.",
            f"Compute in {dtype}, which {facts.gpu or 'this processor'} multiplies faster.",
            facts.computing_gain(1.5 if facts.gpu else 1.2),
            ("precision=amp", f"precision.dtype={dtype}"),
            learns=True,
        )
    if facts.convolutional:
        yield Verdict(
            "channels_last",
            f"{computing}, with each channel of an image in a plane of its own (channels first).",
            "Store the channels of a pixel together, which most kernels process faster.",
            facts.computing_gain(1.1),
            ("channels_last=true",),
            learns=True,
        )
    fixed = facts.fixed_share
    if facts.gpu and not facts.compiled and fixed >= FIXED_SHARE:
        yield Verdict(
            "compile_model",
            f"{100 * fixed:.0f} % of a step's computation does not grow with the batch: the host "
            "launches many small kernels.",
            "Let torch.compile fuse the kernels; the first step of each batch size takes a minute.",
            facts.computing_gain(1 / (1 - fixed / 2)),
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
    most = (64 if size < TINY else 8) * size
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
        facts.computing_gain(factor / (fixed + (1 - fixed) * factor)),
        (f"batch_size={factor * size}",),
        learns=True,
        parts=(*COMPUTING, "wait", "copy") if is_tiny else (),
    )


def synchronizations(facts: Facts) -> Iterator[Verdict]:
    """Detect code of the user that makes the host wait for the GPU within a step."""
    count = sum(sync.count for sync in facts.syncs)
    # What a wait and the launches after it take at least. Assumed; no GPU measured it.
    share = count * 2e-5 / facts.step_s
    if facts.gpu and share >= 0.05:
        first = facts.syncs[0]
        yield Verdict(
            "synchronizations",
            f"{count} calls in a step make the host wait for {facts.gpu}, which then idles "
            f"until new work arrives; most of them are {first.call} in {place_of(first)}.",
            "Leave numbers on the device: return tensors, and use torch.where in place of an if.",
            1 / (1 - min(share, 0.9)),
            edit=f"{place_of(first)} differently: {first.text}",
        )


def python_in_step(facts: Facts) -> Iterator[Verdict]:
    """Detect that Python of the model, the objective or the augment takes much of a step."""
    step_s = facts.step_s
    busy_s = step_s / facts.headroom  # of a step that does not wait
    for part, spans in PYTHON_SLOWS.items():
        of_busy = facts.python.get(part, 0.0)
        share = of_busy / facts.headroom
        if share < PYTHON_SHARE:
            continue
        rest_s = busy_s * (1 - of_busy)
        if part == "augment" and not facts.gpu and "copy" in facts.spans_s:
            # What was measured alone neither copies nor augments. Beside a loader, both take longer
            # than alone.
            copy_s = facts.spans_s["copy"] - facts.compute_spans_s.get("copy", 0.0)
            rest_s = facts.batch_size / facts.compute + max(0.0, copy_s - of_busy * busy_s)
        left_s = max(min(busy_s, rest_s), busy_s / 100)  # no measurement resolves less
        after_s = left_s + min(step_s - busy_s, facts.batch_size / facts.loader_rate)
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
    share = facts.function_share
    if not facts.has_function or not facts.slow_rate or share < PYTHON_SHARE:
        return
    owner = "transform"
    if facts.storage is not None and facts.storage.form == "dataset":
        owner = "Dataset"
    where, edit = _line_of(facts, "transform")
    yield Verdict(
        "python_in_transform",
        f"Python code of the {owner} takes {100 * share:.0f} % of preparing a record{where}.",
        "Use NumPy, OpenCV or torch on whole images, or transform=..., or augment=... on a GPU.",
        gain(facts, load_s=facts.load_s * (1 - share)),
        edit=edit,
        parts=("wait",),
    )


def _line_of(facts: Facts, part: str) -> tuple[str, str]:
    """Return the largest line of a part, as the end of a sentence, and how to change it."""
    line = next((line for line in facts.lines if line.part == part), None)
    if line is None:
        return "", f"the {part} without Python loops"
    place = place_of(line)
    return f", most of it in {place} ({line.function})", f"{place} differently: {line.text}"


def place_of(line: PythonLine | Sync) -> str:
    """Return ``file:line``, from the present folder."""
    return f"{os.path.relpath(line.file)}:{line.line}"


def parts_of_run(facts: Facts) -> Iterator[Verdict]:
    """Detect that validating, saving or reporting takes much of the run."""
    run, step_s = facts.run, facts.step_s
    if run is None:
        return
    shares, costs_s = run.shares(step_s), run.costs_s
    run_s = step_s + math.fsum(costs_s.values())  # a step, with what the run does beside it
    takes = {name: f"takes {100 * share:.0f} % of the run:" for name, share in shares.items()}
    compared = f"and a step {1e3 * step_s:,.1f} ms"
    target = f"which takes less than {100 * TARGET_SHARE:.0f} %"
    if run.validate_every is not None and shares["validating"] >= RUN_SHARE:
        cost_s = run.validate_s + run.save_s  # each is followed by a save
        every = _interval(cost_s, step_s)
        when = f"every {run.validate_every:,.0f} steps"
        if run.validate_every == run.epoch_steps:
            when = f"every epoch of {run.epoch_steps:,} steps"
        yield Verdict(
            "frequent_validation",
            f"Validating {takes['validating']} {1e3 * run.validate_s:,.0f} ms {when}, {compared}.",
            f"Validate every {every:,} steps, {target}.",
            run_s / max(run_s - cost_s / run.validate_every + cost_s / every, step_s),
            (f"validate_every={every}",),
            period_s=cost_s + run.validate_every * step_s,
        )
    every = _interval(run.save_s, step_s)
    often = {key: steps for key, steps in run.save_every.items() if steps < every}
    if often and shares["saving"] >= RUN_SHARE:
        steps_per = {"checkpoint.every_epochs": run.epoch_steps, "checkpoint.every_s": 1 / step_s}
        keys = ", ".join(f"{key} every {steps:,.0f} steps" for key, steps in often.items())
        yield Verdict(
            "frequent_saving",
            f"Saving {takes['saving']} {1e3 * run.save_s:,.0f} ms ({keys}), {compared}.",
            f"Save every {every:,} steps, {target}. A run that is killed repeats the steps since "
            "the last save.",
            run_s / max(run_s - costs_s["saving"] + run.save_s / every, step_s),
            tuple(f"{key}={math.ceil(every / steps_per.get(key, 1))}" for key in often),
            period_s=1 / times_per_step(*run.save_every.values()) * run_s,
        )
    if shares["reporting"] >= RUN_SHARE:
        cost_s = math.fsum(run.report_s.values())
        every = min(_interval(cost_s, step_s), run.epoch_steps)
        left_s = cost_s * times_per_step(every, run.epoch_steps)
        slowest = max(run.report_s, key=lambda name: run.report_s[name])
        overrides, action = (f"report_every={every}",), ""
        if every <= run.report_every:
            overrides, action = (), f"leave out sink={slowest}"
        yield Verdict(
            "chatty_sinks",
            f"Writing reports {takes['reporting']} {1e3 * cost_s:,.1f} ms every "
            f"{run.report_every:,} steps, {compared}. {100 * run.report_s[slowest] / cost_s:.0f} % "
            f"of it is sink={slowest}.",
            f"Report every {every:,} steps, which takes {100 * left_s / (step_s + left_s):.0f} %.",
            run_s / max(run_s - costs_s["reporting"] + left_s, step_s),
            overrides,
            period_s=cost_s / costs_s["reporting"] * run_s,
            action=action,
        )


def _interval(cost_s: float, step_s: float) -> int:
    """Return the steps between two of ``cost_s`` that leave the target share, in two digits."""
    least = max(cost_s / (TARGET_SHARE * step_s), 1.0)
    digits = 10 ** max(0, math.floor(math.log10(least)) - 1)
    return max(1, math.ceil(least / digits) * digits)


def threads_of_operators(facts: Facts) -> Iterator[Verdict]:
    """Detect more threads of OpenMP or OpenCV than cores, which wait for each other."""
    cores, workers, faster = facts.num_cores, facts.workers, facts.fewer_threads_gain
    if facts.num_threads > cores and faster >= LEAST_GAIN:
        says = f"torch computes with {facts.num_threads} threads on {cores} cores; "
        says += f"with {cores} threads, computing is {faster:.1f} times as fast."
        overrides: tuple[str, ...] = ()
        if workers > cores:
            says += f" {workers} workers take the same cores."
            overrides = (f"workers.num={cores}",)
        yield Verdict(
            "too_many_threads",
            says,
            "Use a thread for each core: more threads wait for each other in every operator.",
            facts.computing_gain(faster),
            overrides,
            threads=cores,
            parts=COMPUTING,
        )
    if facts.no_opencv_gain >= LEAST_GAIN:
        yield Verdict(
            "opencv_threads",
            f"OpenCV shares each call among {facts.opencv_threads} threads, with "
            f"{plural(max(1, workers), 'reading thread')} on {cores} cores.",
            "Switch OpenCV's threads off; the workers already share the cores.",
            facts.no_opencv_gain,
            edit="cv2.setNumThreads(0) after 'import cv2' in your module",
        )


def other_programs(facts: Facts) -> Iterator[Verdict]:
    """Detect other programs, or other virtual machines, that take the cores."""
    use = facts.use
    taken_cores = use.others_cores + use.stolen_cores
    if use.throttled_share >= THROTTLED:  # see `cpu_quota`
        return
    if taken_cores < BUSY_CORES or facts.num_threads > facts.num_cores:
        return
    says = f"Other programs keep {use.others_cores:.1f} of {facts.allowed_cores} cores busy"
    says += f", while training has {use.own_cores:.1f}"
    if use.programs:
        says += ": " + ", ".join(f"{name} ({pid}) {cores:.1f}" for pid, name, cores in use.programs)
    if use.stolen_cores >= BUSY_CORES:
        says += f"; other virtual machines take {use.stolen_cores:.1f}"
    # Others give back no more than they take. For the rest, our threads wait for each other.
    gains = [min(facts.demand, 1 + taken_cores / max(use.own_cores, LEAST_CORES))]
    if facts.fewer_threads < facts.num_threads and not facts.gpu:
        # Threads of an operator also wait for each other. The CPU time with fewer threads is what
        # computing costs without that, and all threads are taken to share it.
        cores = max(facts.fewer_threads_cores, LEAST_CORES)
        faster = max(1.0, facts.fewer_threads_gain * facts.num_threads / cores)
        gains.append(facts.computing_gain(faster))
    action = "end the programs, or give each program its own cores with taskset"
    if facts.fewer_threads_gain >= LEAST_GAIN:
        action += f"; until then, OMP_NUM_THREADS={facts.fewer_threads} before the command, which "
        action += f"computes {facts.fewer_threads_gain:.1f} times as fast"
    why = "Train when they have ended, or on cores of its own."
    yield Verdict("other_programs", f"{says}.", why, max(gains), action=action)


def unused_cores(facts: Facts) -> Iterator[Verdict]:
    """Detect a CPU quota that stops the run, or an affinity mask that leaves cores unused."""
    cores, every, throttled = facts.allowed_cores, facts.all_cores, facts.use.throttled_share
    if facts.quota_cores is not None and throttled >= THROTTLED:
        share, more = facts.computing_share, facts.demand
        if facts.num_threads < cores and not facts.gpu:
            # A run has no more threads than its quota has cores.
            more = max(more, cores / max(LEAST_CORES, facts.compute_cores))
        yield Verdict(
            "cpu_quota",
            f"A CPU quota of {facts.quota_cores:g} cores stops training in "
            f"{100 * throttled:.0f} % of its periods of 0.1 s.",
            f"Raise the quota to the {cores} cores of the affinity mask, or use a larger machine.",
            1 / (share / more + (1 - share) / facts.demand),
            action=raise_quota(cores),
        )
    if facts.all_cores_gain >= LEAST_GAIN:
        yield Verdict(
            "few_cores",
            f"The run may use {cores} of {every} cores, and keeps {facts.use.own_cores:.1f} busy.",
            f"Start it on all {every} cores.",
            facts.all_cores_gain,
            action=use_all_cores(every),
        )


def raise_quota(cores: int) -> str:
    """Return what gives a control group this many cores."""
    return f"docker run --cpus={cores}, limits.cpu: {cores} in Kubernetes, or cpu.max"


def use_all_cores(every: int) -> str:
    """Return what lets a command run on all cores of the machine."""
    return f"taskset --cpu-list 0-{every - 1} before it; in Slurm, --cpus-per-task={every}"


def little_memory(facts: Facts) -> Iterator[Verdict]:
    """Detect memory that is swapped, or so full that the system keeps no files."""
    use, free_bytes = facts.use, facts.free_memory_bytes
    action = "a larger accumulate=; or end other programs"
    if facts.kind == "process" and facts.workers > 1:
        action = f"workers.kind=thread or {action}"
    if facts.staged:
        action = f"data.stage=none or {action}"
    why = "Use less memory, or give the run more."
    unstalled_gain = 1 / max(1 - use.stalled_share, 0.1)
    swapped = use.swapped_bytes / use.wall_s
    if swapped >= 1e7:  # bytes per second; any machine swaps less
        # A thread that prepares records waits for what is in swap, which the system brings.
        computing = min(1.0, max(LEAST_CORES, facts.prepare_cores - facts.prepare_system_cores))
        yield Verdict(
            "swap",
            f"The machine swaps {swapped / 1e6:,.0f} MB/s while training runs, and "
            f"{use.own_swap_bytes / 1e6:,.0f} MB of this run are in swap. "
            f"{100 * use.stalled_share:.0f} % of the time, a program waits for memory.",
            why,
            max(unstalled_gain, min(facts.headroom, 1 / computing)),
            action=action,
        )
    if free_bytes <= 0.1 * facts.memory_bytes:
        yield Verdict(
            "memory_limit",
            f"{free_bytes / 1e6:,.0f} MB of {facts.memory_bytes / 1e6:,.0f} MB are free: files are "
            "read from the disk again, and the run may be killed.",
            why,
            unstalled_gain,
            action=action,
        )


def slow_disk(facts: Facts) -> Iterator[Verdict]:
    storage, disk = facts.slow_storage, facts.disk_rate
    if disk is None or storage is None or facts.read is None or facts.prepare is None:
        return
    # No longer than the disk takes: a thread also waits for cores that others keep busy.
    wait_s = min((1 - facts.read_cores) / facts.read, storage.record_bytes / disk.cold)
    share = wait_s * facts.prepare
    if storage.disk == "memory" or facts.read_cores > 0.5 or share < 0.5:
        return
    size = f"{storage.num_bytes / 1e6:,.0f} MB"
    # How much holds Python's lock is unknown: threads that wait for a disk are no faster together.
    work_s = facts.load_s * min(1.0, facts.prepare_cores)  # the rest waits for the disk
    factor = gain(facts, measured=True, load_s=work_s, lock_share=0.0)
    overrides: tuple[str, ...] = ()
    action = ""
    fits = storage.num_bytes <= 0.5 * facts.free_memory_bytes
    if fits and storage.form in ("hdf5", "lmdb") and not facts.staged:
        why = f"Copy the store ({size}) into memory before the first step; it stays there."
        overrides = ("data.stage=ram",)
    elif disk.cold_many > 1.5 * disk.cold:  # each read waits for its answer
        workers = min(32, max(NUM_THREADS, 2 * facts.workers))
        if facts.workers >= workers:
            return
        at_once = min(disk.cold_many / disk.cold, workers)
        # Readers that started together wait together, and then they and the step want the cores.
        busy_s = work_s / facts.batch_size + facts.compute_cores / facts.compute
        record_s = wait_s / at_once + busy_s / min(at_once, facts.num_cores)
        factor = min(facts.headroom, 1 / facts.whole / max(record_s, 1 / facts.compute))
        why = f"Use {workers} workers, more than the cores: {NUM_THREADS} reads at once bring "
        why += f"{disk.cold_many / disk.cold:.1f} times as much, since each read mostly waits."
        overrides = (f"workers.num={workers}",)
        if storage.encoding == "raw":  # a thread reads a whole batch, and only three are at once
            overrides += ("workers.kind=process",)
    else:
        why = f"Copy the data ({size}) to a faster disk, or pack it smaller. More readers do not "
        why += f"help: {NUM_THREADS} of them read {disk.cold_many / 1e6:,.1f} MB/s together."
        action = f"copy {storage.path} to a local disk, or a memory with {size} free"
    yield Verdict(
        "network_disk" if storage.disk == "network" else "cold_disk",
        f"Reading waits for the disk ({storage.disk}): {disk.cold / 1e6:,.1f} MB/s in one thread. "
        f"{100 * share:.0f} % of preparing a record is this wait.",
        why,
        factor,
        overrides,
        action=action,
        parts=("wait",),
    )


def waiting_for_ranks(facts: RankFacts) -> Iterator[Verdict]:
    """Detect a rank that makes all others wait, or different amounts of work in every step."""
    late = facts.late
    if late and late.lost_share >= LEAST_OF_RANKS and facts.rank_work < UNEVEN:
        yield Verdict(
            "slow_rank",
            f"R{late.words[1:]}.",
            f"All ranks are as slow as rank {late.rank}.",
            _without(late.lost_share),
            action=WHERE.get(late.span, COMPUTES),
        )
    if facts.step_work >= UNEVEN and facts.waiting_share >= LEAST_WAITING:
        yield Verdict(
            "uneven_ranks",
            f"Ranks wait for each other in {100 * facts.waiting_share:.0f} % of the time: the "
            f"largest share of a batch is {facts.step_work:.1f} times as large as the mean one.",
            "Give all ranks records of about the same size.",
            _without(facts.waiting_share),
            action="Use order=buckets for several lengths, or crop or scale records to one size.",
        )


def slow_collectives(facts: RankFacts) -> Iterator[Verdict]:
    """Detect exchanges that take a large share of a step, even without waiting for a rank."""
    of_gradients = max(0.0, 1 - (facts.unsynced_s or facts.step_s) / facts.step_s)
    share = max(facts.exchange_share, of_gradients)
    if share < LEAST_OF_RANKS:
        return
    says = f"Exchanges among {facts.num_ranks} ranks take {100 * share:.0f} % of a step"
    if facts.unsynced_s is not None:
        says += f"; without that of gradients it would take {1e3 * facts.unsynced_s:.1f} ms"
        says += f" instead of {1e3 * facts.step_s:.1f} ms"
    why = "Exchange less often, by a larger batch or fewer ranks."
    action = "Give each rank more records, as with rank_batch_size=; use a faster network."
    overrides: tuple[str, ...] = ()
    if facts.sync_batch_norm and of_gradients < facts.exchange_share / 2:
        why = "Batch norm exchanges its statistics in every layer. Let each rank use its own."
        action, overrides = "", ("parallel.sync_batch_norm=false",)
    yield Verdict(
        "slow_collectives", f"{says}.", why, _without(share), overrides, action=action, learns=True
    )


def _without(share: float) -> float:
    return 1 / max(0.05, 1 - share)


MACHINE_RULES = (threads_of_operators, other_programs, unused_cores, little_memory, slow_disk)
# Rules, and the parts of a step that their causes slow.
RULES = (
    ((data_is_fine, larger_batch, operators, synchronizations), COMPUTING),
    ((python_in_step, python_in_transform), ("forward",)),
    (MACHINE_RULES, ("wait", "copy", *COMPUTING)),
    ((parts_of_run,), RUN_PARTS),
)
RANK_RULES = (waiting_for_ranks, slow_collectives)
