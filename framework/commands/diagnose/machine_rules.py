"""Rules about what the machine gives a run: cores, memory and its disk."""

from framework.commands.diagnose.facts import DiagnosisFacts, computing_gain, gain_of_measured
from framework.commands.diagnose.machine_facts import LEAST_CORES
from framework.commands.diagnose.verdict import Verdict
from framework.measure.disk import NUM_THREADS, DiskRate

# A smaller measured gain may be chance.
LEAST_GAIN = 1.1
# Cores that other programs and other machines keep busy, from which on they are worth naming.
BUSY_CORES = 0.3
# Of the periods of a CPU quota: if fewer are cut short, the quota hardly matters.
THROTTLED = 0.1
# The share of memory that should stay free.
FREE = 0.1
# Swapping less is what any machine does.
SWAPPED_BYTES_PER_S = 1e7
# The share of preparing a record that waiting for the disk must take to be its cause.
DISK_SHARE = 0.5
# If many threads together read so many times as fast as one, each of them waits for the answer.
LATENCY = 1.5
# The share of free memory that a staged store may take.
MEMORY_SHARE = 0.5
MOST_WORKERS = 32
# With more CPU seconds per second of reading, reading does not wait for the disk.
WAITS = 0.5
COMPUTING = ("compute", "forward", "backward", "optimizer")


def too_many_threads(facts: DiagnosisFacts) -> Verdict | None:
    """Detect more OpenMP threads than cores, which wait for each other in every operator."""
    machine = facts.on_machine
    cores = facts.machine.num_cores
    if machine is None or machine.num_threads <= cores or machine.fewer_threads_gain < LEAST_GAIN:
        return None
    workers = facts.settings.workers
    overrides: tuple[str, ...] = ()
    beside = ""
    if workers > cores:
        overrides = (f"workers.num={cores}",)
        beside = f" {workers} workers take the same cores."
    return Verdict(
        "too_many_threads",
        f"torch computes with {machine.num_threads} threads on {cores} cores; with {cores} "
        f"threads, computing is {machine.fewer_threads_gain:.1f} times as fast.{beside}",
        "Use a thread for each core: more threads wait for each other in every operator.",
        computing_gain(facts, machine.fewer_threads_gain),
        overrides,
        threads=cores,
        parts=COMPUTING,
    )


def opencv_threads(facts: DiagnosisFacts) -> Verdict | None:
    """Detect that OpenCV's threads and the workers' threads are more than the cores."""
    machine = facts.on_machine
    if machine is None or machine.no_opencv_gain < LEAST_GAIN:
        return None
    workers = max(1, facts.settings.workers)
    return Verdict(
        "opencv_threads",
        f"OpenCV shares each call among {machine.opencv_threads} threads, although "
        f"{workers} {'thread reads' if workers == 1 else 'threads read'} records on "
        f"{facts.machine.num_cores} cores.",
        "Switch OpenCV's threads off; the workers already share the cores.",
        machine.no_opencv_gain,
        edit="cv2.setNumThreads(0) after 'import cv2' in your module",
    )


def other_programs(facts: DiagnosisFacts) -> Verdict | None:
    """Detect other programs, or other virtual machines, that take the cores."""
    machine = facts.on_machine
    if machine is None:
        return None
    use = machine.use
    if machine.use.throttled_share >= THROTTLED:  # see `cpu_quota`
        return None
    if machine.taken_cores < BUSY_CORES or machine.num_threads > facts.machine.num_cores:
        return None
    names = ", ".join(f"{name} ({pid}) {cores:.1f}" for pid, name, cores in use.programs)
    says = (
        f"Other programs keep {use.others_cores:.1f} of {machine.allowed_cores} cores busy, "
        f"while training has {use.own_cores:.1f}"
    )
    if names:
        says += f": {names}"
    if use.stolen_cores >= BUSY_CORES:
        says += f"; other virtual machines take {use.stolen_cores:.1f}"
    by_threads = 1.0 if facts.cuda else computing_gain(facts, machine.own_cores_gain)
    action = "end the programs, or give each program its own cores with taskset"
    if machine.fewer_threads_gain >= LEAST_GAIN:
        action += (
            f"; until then, OMP_NUM_THREADS={machine.fewer_threads} before the command, which "
            f"computes {machine.fewer_threads_gain:.1f} times as fast as {machine.num_threads} "
            "threads that wait for each other"
        )
    return Verdict(
        "other_programs",
        f"{says}.",
        "Train when they have ended, or on cores of its own.",
        max(machine.undisturbed_gain, by_threads),
        action=action,
    )


def cpu_quota(facts: DiagnosisFacts) -> Verdict | None:
    """Detect a control group that stops the run whenever the CPU quota of a period is used up."""
    machine = facts.on_machine
    if machine is None or machine.quota_cores is None:
        return None
    if machine.use.throttled_share < THROTTLED:
        return None
    use = machine.use
    cores = machine.allowed_cores
    share = facts.computing_share
    more = 1.0
    if machine.num_threads < cores and not facts.cuda:
        # A run has no more threads than its quota has cores. With more, operators share all cores.
        more = max(1.0, cores / max(LEAST_CORES, facts.rates.compute_cores))
    return Verdict(
        "cpu_quota",
        f"A CPU quota of {machine.quota_cores:g} cores stops training in "
        f"{100 * use.throttled_share:.0f} % of its periods of 0.1 s.",
        f"Raise the quota to the {cores} cores of the affinity mask, or use a machine with more.",
        1 / (share / max(more, machine.demand) + (1 - share) / machine.demand),
        action=f"docker run --cpus={cores}, in Kubernetes limits.cpu: {cores}, or in a control "
        f"group cpu.max = max",
    )


def few_cores(facts: DiagnosisFacts) -> Verdict | None:
    """Detect an affinity mask that leaves cores of the machine unused."""
    machine = facts.on_machine
    if machine is None or machine.all_cores_gain < LEAST_GAIN:
        return None
    every = machine.all_cores
    return Verdict(
        "few_cores",
        f"The process may run on {machine.allowed_cores} of {every} cores, and keeps "
        f"{machine.use.own_cores:.1f} busy.",
        f"Start it on all {every} cores.",
        machine.all_cores_gain,
        action=f"taskset --cpu-list 0-{every - 1} paceline train ...; with Slurm, "
        f"--cpus-per-task={every}",
    )


def swap(facts: DiagnosisFacts) -> Verdict | None:
    """Detect memory that is moved to the disk and back while training needs it."""
    machine = facts.on_machine
    if machine is None:
        return None
    use = machine.use
    swapped = machine.swapped_bytes_per_s
    if swapped < SWAPPED_BYTES_PER_S:
        return None
    # What a thread that prepares records waits for is in swap, and the system works to bring it.
    rates = facts.rates
    computing = min(1.0, max(LEAST_CORES, rates.prepare_cores - rates.prepare_system_cores))
    in_memory = min(facts.headroom, 1 / computing)
    return _needs_memory(
        facts,
        "swap",
        max(machine.unstalled_gain, in_memory),
        f"The machine swaps {swapped / 1e6:,.0f} MB/s while training runs, and "
        f"{use.own_swap_bytes / 1e6:,.0f} MB of this run are in swap. "
        f"{100 * use.stalled_share:.0f} % of the time, a program waits for memory.",
    )


def memory_limit(facts: DiagnosisFacts) -> Verdict | None:
    """Detect nearly full memory, with which the system keeps no files and may end the run."""
    machine = facts.on_machine
    if machine is None or machine.free_memory_bytes > FREE * machine.memory_bytes:
        return None
    whose = "the control group" if machine.in_group else "the machine"
    return _needs_memory(
        facts,
        "memory_limit",
        machine.unstalled_gain,
        f"{machine.free_memory_bytes / 1e6:,.0f} MB of the {machine.memory_bytes / 1e6:,.0f} MB "
        f"of {whose} are free: files are read from the disk again, and the run may be killed.",
    )


def cold_disk(facts: DiagnosisFacts) -> Verdict | None:
    """Detect reading that waits for a local disk."""
    return None if _is_network(facts) else _slow_disk(facts, "cold_disk")


def network_disk(facts: DiagnosisFacts) -> Verdict | None:
    """Detect reading that waits for a network file system."""
    return _slow_disk(facts, "network_disk") if _is_network(facts) else None


PARTS = ("wait", "copy", *COMPUTING)
RULES = (
    too_many_threads,
    opencv_threads,
    other_programs,
    cpu_quota,
    few_cores,
    swap,
    memory_limit,
    cold_disk,
    network_disk,
)


def _needs_memory(facts: DiagnosisFacts, rule: str, gain: float, says: str) -> Verdict:
    """Return advice to use less memory, by what this run uses it for."""
    settings = facts.settings
    ways: list[str] = []
    if settings.staged:
        ways.append("data.stage=none")
    if settings.kind == "process" and settings.workers > 1:
        ways.append("workers.kind=thread")
    ways.append("a larger accumulate=")
    return Verdict(
        rule,
        says,
        "Use less memory, or give the run more.",
        gain,
        action=f"{' or '.join(ways)}; or end other programs",
    )


def _is_network(facts: DiagnosisFacts) -> bool:
    return facts.storage is not None and facts.storage.disk == "network"


def _slow_disk(facts: DiagnosisFacts, rule: str) -> Verdict | None:
    storage = facts.slow_storage
    wait_s = _disk_wait_s(facts)
    if storage is None or not wait_s:
        return None
    machine = facts.on_machine
    assert machine is not None
    assert machine.disk is not None
    disk = machine.disk
    share = wait_s * (facts.rates.prepare or 0.0)
    says = (
        f"Reading waits for the disk ({storage.disk}): {disk.cold / 1e6:,.1f} MB/s in one thread. "
        f"{100 * share:.0f} % of preparing a record is "
        "this wait."
    )
    size = f"{storage.num_bytes / 1e6:,.0f} MB"
    # How much of preparing holds Python's lock is unknown: threads that wait for a disk with a
    # limit are no faster together than one.
    from_memory = gain_of_measured(facts, load_s=facts.work_s, lock_share=0.0)
    fits = storage.num_bytes <= MEMORY_SHARE * machine.free_memory_bytes
    if fits and storage.form in ("hdf5", "lmdb") and not facts.settings.staged:
        why = f"Copy the store ({size}) into memory before the first step; it stays there."
        return Verdict(rule, says, why, from_memory, ("data.stage=ram",), parts=("wait",))
    if disk.cold_many > LATENCY * disk.cold:
        return _more_readers(facts, rule, says, disk)
    return Verdict(
        rule,
        says,
        f"Copy the data ({size}) to a faster disk, or pack it smaller. More readers do not help: "
        f"{NUM_THREADS} of them read {disk.cold_many / 1e6:,.1f} MB/s together.",
        from_memory,
        action=f"copy {storage.path} to a local disk, or a memory with {size} free",
        parts=("wait",),
    )


def _more_readers(facts: DiagnosisFacts, rule: str, says: str, disk: DiskRate) -> Verdict | None:
    """Advise more workers than cores, since each of them mostly waits for an answer."""
    settings = facts.settings
    storage = facts.storage
    assert storage is not None
    workers = min(MOST_WORKERS, max(NUM_THREADS, 2 * settings.workers))
    if settings.workers >= workers:
        return None
    wait_s = _disk_wait_s(facts)
    work_s = facts.work_s / settings.batch_size
    at_once = min(disk.cold_many / disk.cold, workers)
    # Readers that started together wait together, and then they and the step want the cores.
    computing_s = facts.rates.compute_cores / facts.rates.compute
    record_s = wait_s / at_once + (work_s + computing_s) / min(at_once, facts.machine.num_cores)
    load_s = settings.batch_size * record_s
    step_s = max(load_s, settings.batch_size / facts.rates.compute)
    overrides: tuple[str, ...] = (f"workers.num={workers}",)
    if storage.encoding == "raw":  # a thread reads a whole batch, and only three are read at once
        overrides += ("workers.kind=process",)
    return Verdict(
        rule,
        says,
        f"Use {workers} workers, more than the cores: {NUM_THREADS} reads at once bring "
        f"{disk.cold_many / disk.cold:.1f} times as much, since each read mostly waits.",
        min(facts.headroom, settings.batch_size / facts.rates.whole / step_s),
        overrides,
        parts=("wait",),
    )


def _disk_wait_s(facts: DiagnosisFacts) -> float:
    """Return the seconds that reading a record waits for the disk; 0 if they hardly matter."""
    machine = facts.on_machine
    storage = facts.slow_storage
    rates = facts.rates
    if machine is None or machine.disk is None or storage is None or rates.read is None:
        return 0.0
    if storage.disk == "memory" or rates.read_cores > WAITS or rates.prepare is None:
        return 0.0
    # No longer than the disk takes: a thread also waits for cores that others keep busy.
    wait_s = min((1 - rates.read_cores) / rates.read, storage.record_bytes / machine.disk.cold)
    return wait_s if wait_s * rates.prepare >= DISK_SHARE else 0.0
