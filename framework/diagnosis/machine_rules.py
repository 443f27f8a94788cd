"""Rules about what a run gets: cores, memory and its disk, and the other ranks."""

from collections.abc import Iterator

from framework.diagnosis.facts import COMPUTING, LEAST_CORES, Facts, RankFacts, computing_gain, gain
from framework.diagnosis.findings import Verdict
from framework.measure.host import NUM_THREADS

LEAST_GAIN = 1.1  # a smaller measured gain may be chance
BUSY_CORES = 0.3  # that other programs or other machines keep busy are worth naming
THROTTLED = 0.1  # of the periods of a CPU quota; if fewer are cut short, it hardly matters
FREE = 0.1  # of the memory, that should stay free
SWAPPED_BYTES_PER_S = 1e7  # swapping less is what any machine does
LEAST_UNSTALLED = 0.1  # the share of a step that removing all waiting for memory leaves, at least
DISK_SHARE = 0.5  # of preparing a record; a shorter wait for the disk is not its cause
LATENCY = 1.5  # if many threads read so many times as fast as one, each waits for the answer
MEMORY_SHARE = 0.5  # of free memory, that a staged store may take
MOST_WORKERS = 32
WAITS = 0.5  # with more CPU seconds per second of reading, reading does not wait for the disk
LEAST_OF_RANKS = 0.03  # of a step of several ranks; less is not worth advice
LEAST_WAITING = 0.1  # ranks may take turns in being last by chance; more needs an explanation
UNEVEN = 1.1  # a rank with so many times the work of the mean one is late because of it
LEAST_LEFT = 0.05  # the share that removing an exchange leaves of a step, at least
WHERE = {
    "wait": "Look at its disk, its network and its host's free cores.",
    "copy": "Look at the link between its host and its device, and at what augments there.",
    "report": "Look at what only this rank does at reports: sinks, watchers, pictures.",
}
COMPUTES = "Look at code that asks for its rank, other programs on its cores, and a hotter device."


def threads_of_operators(facts: Facts) -> Iterator[Verdict]:
    """Detect more threads of OpenMP or OpenCV than cores, which wait for each other."""
    cores, workers, faster = facts.num_cores, facts.workers, facts.fewer_threads_gain
    if facts.num_threads > cores and faster >= LEAST_GAIN:
        crowds = workers > cores
        beside = f" {workers} workers take the same cores." if crowds else ""
        yield Verdict(
            "too_many_threads",
            f"torch computes with {facts.num_threads} threads on {cores} cores; with {cores} "
            f"threads, computing is {faster:.1f} times as fast.{beside}",
            "Use a thread for each core: more threads wait for each other in every operator.",
            computing_gain(facts, faster),
            (f"workers.num={cores}",) if crowds else (),
            threads=cores,
            parts=COMPUTING,
        )
    if facts.no_opencv_gain >= LEAST_GAIN:
        reading = "1 thread reads" if workers <= 1 else f"{workers} threads read"
        yield Verdict(
            "opencv_threads",
            f"OpenCV shares each call among {facts.opencv_threads} threads, although {reading} "
            f"records on {cores} cores.",
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
    says = (
        f"Other programs keep {use.others_cores:.1f} of {facts.allowed_cores} cores busy, "
        f"while training has {use.own_cores:.1f}"
    )
    if use.programs:
        says += ": " + ", ".join(f"{name} ({pid}) {cores:.1f}" for pid, name, cores in use.programs)
    if use.stolen_cores >= BUSY_CORES:
        says += f"; other virtual machines take {use.stolen_cores:.1f}"
    # Others give back no more than they take. For the rest, our threads wait for each other.
    gains = [min(facts.demand, 1 + taken_cores / max(use.own_cores, LEAST_CORES))]
    if facts.fewer_threads < facts.num_threads and not facts.cuda:
        # Threads of an operator also wait for each other. The CPU time with fewer threads is what
        # computing costs without that, and all threads are taken to share it.
        cores = max(facts.fewer_threads_cores, LEAST_CORES)
        faster = max(1.0, facts.fewer_threads_gain * facts.num_threads / cores)
        gains.append(computing_gain(facts, faster))
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
        if facts.num_threads < cores and not facts.cuda:
            # A run has no more threads than its quota has cores.
            more = max(more, cores / max(LEAST_CORES, facts.compute_cores))
        yield Verdict(
            "cpu_quota",
            f"A CPU quota of {facts.quota_cores:g} cores stops training in "
            f"{100 * throttled:.0f} % of its periods of 0.1 s.",
            f"Raise the quota to the {cores} cores of the affinity mask, or use a larger machine.",
            1 / (share / more + (1 - share) / facts.demand),
            action=f"docker run --cpus={cores}, limits.cpu: {cores} in Kubernetes, or cpu.max",
        )
    if facts.all_cores_gain >= LEAST_GAIN:
        yield Verdict(
            "few_cores",
            f"The run may use {cores} of {every} cores, and keeps {facts.use.own_cores:.1f} busy.",
            f"Start it on all {every} cores.",
            facts.all_cores_gain,
            action=f"taskset --cpu-list 0-{every - 1} before it; in Slurm, --cpus-per-task={every}",
        )


def little_memory(facts: Facts) -> Iterator[Verdict]:
    """Detect memory that is swapped, or so full that the system keeps no files."""
    use, free_bytes = facts.use, facts.free_memory_bytes
    ways = ["data.stage=none"] if facts.staged else []
    if facts.kind == "process" and facts.workers > 1:
        ways.append("workers.kind=thread")
    ways.append("a larger accumulate=")
    action = f"{' or '.join(ways)}; or end other programs"
    why = "Use less memory, or give the run more."
    unstalled_gain = 1 / max(1 - use.stalled_share, LEAST_UNSTALLED)
    swapped = use.swapped_bytes / use.wall_s
    if swapped >= SWAPPED_BYTES_PER_S:
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
    if free_bytes <= FREE * facts.memory_bytes:
        owner = "the control group" if facts.in_group else "the machine"
        yield Verdict(
            "memory_limit",
            f"{free_bytes / 1e6:,.0f} MB of the {facts.memory_bytes / 1e6:,.0f} MB of {owner} are "
            "free: files are read from the disk again, and the run may be killed.",
            why,
            unstalled_gain,
            action=action,
        )


def slow_disk(facts: Facts) -> Iterator[Verdict]:
    """Detect reading that waits for a local disk, or for a network file system."""
    storage, disk = facts.slow_storage, facts.disk_rate
    if disk is None or storage is None or facts.read is None or facts.prepare is None:
        return
    # No longer than the disk takes: a thread also waits for cores that others keep busy.
    wait_s = min((1 - facts.read_cores) / facts.read, storage.record_bytes / disk.cold)
    share = wait_s * facts.prepare
    if storage.disk == "memory" or facts.read_cores > WAITS or share < DISK_SHARE:
        return
    size = f"{storage.num_bytes / 1e6:,.0f} MB"
    # How much holds Python's lock is unknown: threads that wait for a disk are no faster together.
    factor = gain(facts, measured=True, load_s=facts.work_s, lock_share=0.0)
    overrides: tuple[str, ...] = ()
    action = ""
    fits = storage.num_bytes <= MEMORY_SHARE * facts.free_memory_bytes
    if fits and storage.form in ("hdf5", "lmdb") and not facts.staged:
        why = f"Copy the store ({size}) into memory before the first step; it stays there."
        overrides = ("data.stage=ram",)
    elif disk.cold_many > LATENCY * disk.cold:
        workers = min(MOST_WORKERS, max(NUM_THREADS, 2 * facts.workers))
        if facts.workers >= workers:
            return
        at_once = min(disk.cold_many / disk.cold, workers)
        # Readers that started together wait together, and then they and the step want the cores.
        work_s = facts.work_s / facts.batch_size + facts.compute_cores / facts.compute
        record_s = wait_s / at_once + work_s / min(at_once, facts.num_cores)
        factor = min(facts.headroom, 1 / facts.whole / max(record_s, 1 / facts.compute))
        why = (
            f"Use {workers} workers, more than the cores: {NUM_THREADS} reads at once bring "
            f"{disk.cold_many / disk.cold:.1f} times as much, since each read mostly waits."
        )
        overrides = (f"workers.num={workers}",)
        if storage.encoding == "raw":  # a thread reads a whole batch, and only three are at once
            overrides += ("workers.kind=process",)
    else:
        why = (
            f"Copy the data ({size}) to a faster disk, or pack it smaller. More readers do not "
            f"help: {NUM_THREADS} of them read {disk.cold_many / 1e6:,.1f} MB/s together."
        )
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


RULES = (threads_of_operators, other_programs, unused_cores, little_memory, slow_disk)


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
        says += (
            f"; without that of gradients it would take {1e3 * facts.unsynced_s:.1f} ms "
            f"instead of {1e3 * facts.step_s:.1f} ms"
        )
    is_batch_norm = facts.sync_batch_norm and of_gradients < facts.exchange_share / 2
    why = "Exchange less often, by a larger batch or fewer ranks."
    action = "Give each rank more records, as with rank_batch_size=; use a faster network."
    if is_batch_norm:
        why = "Batch norm exchanges its statistics in every layer. Let each rank use its own."
        action = ""
    yield Verdict(
        "slow_collectives",
        f"{says}.",
        why,
        _without(share),
        ("parallel.sync_batch_norm=false",) if is_batch_norm else (),
        action=action,
        learns=True,
    )


def _without(share: float) -> float:
    """Return the factor on the training rate if a share of a step were gone."""
    return 1 / max(LEAST_LEFT, 1 - share)


RANK_RULES = (waiting_for_ranks, slow_collectives)
