"""The forecast of a run on other ranks and hosts, from measured runs."""

from dataclasses import dataclass
from math import ceil

from framework.commands.plan.measured_run import MeasuredRun
from framework.commands.plan.planned_hosts import PlannedHosts
from framework.errors import ConfigError

# Beyond so many times the measured ranks, what ranks of one host cost each other is a guess.
MOST_TIMES = 4


@dataclass(frozen=True)
class Forecast:
    """What a run will take. Rates and bytes are of one host.

    Attributes:
        steps: In an epoch.
        epochs: As configured, perhaps not whole.
        step_s: Seconds of a step, once the data is in memory or keeps being read.
        first_step_s: The same in the first epoch, whose data comes from the disk.
        exchange_s: The part of a step that exchanges gradients beyond what one rank computes; None
            if no rank alone was measured.
        train_s: Of all steps.
        validations: Their number.
        validate_s: Of all validations; None if a validation was not measured.
        memory_bytes: Of all ranks, without the page cache.
        cached_share: The share of an epoch's records that fits into the rest of the memory.
        disk_bytes: Of the training set and of what the run saves.
        read_bytes_per_s: That a step needs from the disk; 0 once all is cached. None: no file.
        network_bytes: That a host sends in a step.
        fits: Whether the memory suffices.
        limit: What sets the pace: computing, exchange, disk or network.
    """

    steps: int
    epochs: float
    step_s: float
    first_step_s: float
    exchange_s: float | None
    train_s: float
    validations: int
    validate_s: float | None
    memory_bytes: float
    cached_share: float
    disk_bytes: float
    read_bytes_per_s: float | None
    network_bytes: float
    fits: bool
    limit: str


def missing(what: str, why: str, fix: str) -> ConfigError:
    """Return the error for a forecast that would need a guess. ConfigError C398."""
    return ConfigError(398, what, why, fix)


def rank_share(hosts: PlannedHosts, batch_size: int) -> int:
    """Return the records of a rank in a step. ConfigError C398 if ranks cannot share a batch."""
    if batch_size % hosts.ranks:
        fix = f"choose a batch_size that {hosts.ranks} divides"
        raise missing(f"batch_size = {batch_size}", f"{hosts.ranks} ranks cannot share it", fix)
    return batch_size // hosts.ranks


def check_can_forecast(hosts: PlannedHosts, runs: list[MeasuredRun], batch_size: int) -> None:
    """Raise ConfigError C398 if something was not measured, with the way to measure it."""
    single, run = runs[0], runs[-1]
    rank_batch = rank_share(hosts, batch_size)
    for own in runs:
        if own.rank_batch != rank_batch:
            what = f"each rank computes {rank_batch} records in a step"
            why = f"{what}, but {own.rank_batch} were measured"
            raise missing("ranks", why, f"measure with batch_size={rank_batch * own.ranks}")
        _check_device(hosts, own)
    if single.ranks > 1 and (hosts.hosts > 1 or hosts.ranks != run.ranks):
        why = f"only {single.ranks} ranks together were measured, and no rank alone"
        raise missing(f"ranks = {hosts.ranks}", why, "give run=DIR,DIR: one of them of one rank")
    if hosts.ranks_per_host > 1 and run.ranks == 1:
        why = "what ranks of one host cost each other was not measured"
        raise missing(f"ranks_per_host = {hosts.ranks_per_host}", why, _on_host(hosts, 2))
    if hosts.ranks_per_host > MOST_TIMES * run.ranks:
        why = f"only {run.ranks} ranks were measured on one host, and more than {MOST_TIMES} times"
        what = f"ranks_per_host = {hosts.ranks_per_host}"
        raise missing(what, f"{why} as many is a guess", _on_host(hosts, hosts.ranks_per_host // 2))
    if hosts.hosts > 1 and hosts.network is None:
        fix = "give network=..., as 'iperf3 -c OTHER_HOST' reports it"
        raise missing(f"hosts = {hosts.hosts}", "the network between them was not measured", fix)
    if hosts.disk is not None and run.store_bytes is None:
        why = "the training set is no file, so what it reads was not measured"
        raise missing(f"disk = {hosts.disk:g}", why, "leave disk out, or pack the data")


def _check_device(hosts: PlannedHosts, run: MeasuredRun) -> None:
    measured = run.gpu or "cores"
    if (hosts.gpu is None) != (run.gpu is None) or (hosts.gpu or "") not in (run.gpu or ""):
        wanted = hosts.gpu or "cores (no gpu=)"
        fix = "run 'paceline plan' on such a host, or give run=DIR of a run there"
        raise missing(f"gpu = {wanted}", f"computing was measured on {measured}", fix)
    if run.gpu is None and hosts.cores_per_rank != run.cores_per_rank:
        wanted = f"a rank would have {hosts.cores_per_rank} cores"
        why = f"{wanted}, but {run.cores_per_rank} were measured"
        fix = f"plan with {run.cores_per_rank} cores for each rank, or measure on a host with more"
        raise missing(f"cores = {hosts.cores}", why, fix)


def _on_host(hosts: PlannedHosts, ranks: int) -> str:
    cores = ranks * hosts.cores_per_rank
    return f"run 'paceline plan' on a host with {cores} cores, or give run=DIR of {ranks} ranks"


def forecast(hosts: PlannedHosts, runs: list[MeasuredRun], batch_size: int) -> Forecast:
    """Return the forecast.

    Args:
        hosts: Where the run shall be.
        runs: A run of one rank, if ranks exchange gradients, and a run of as many ranks of one host
            as could be measured. Both have the planned share of the batch and of the cores.
        batch_size: Of the planned run.
    """
    check_can_forecast(hosts, runs, batch_size)
    single, run = runs[0], runs[-1]
    steps = _steps(run, batch_size)
    epochs = float(run.epochs)
    if run.max_steps is not None:
        epochs = min(epochs, run.max_steps / steps)
    network_bytes = _network_bytes(hosts, run)
    network_s = network_bytes / hosts.network if hosts.network and network_bytes else 0.0
    computed_s = run.step_s
    exchange_s = None
    if single.ranks == 1:
        exchange_s = max(_exchange_s(hosts, single, run), network_s)
        computed_s = min(single.step_s, run.step_s) + exchange_s
    memory_bytes = hosts.ranks_per_host * run.memory_bytes
    step_bytes = hosts.ranks_per_host * run.rank_batch * _record_bytes(run)
    disk_s = step_bytes / hosts.disk if hosts.disk else 0.0
    first_step_s = _with_disk(run, computed_s, disk_s)
    cached = _cached_share(hosts, run, memory_bytes)
    step_s = _with_disk(run, computed_s, disk_s * (1 - cached))
    first = min(1.0, epochs)
    validations = ceil(epochs)
    if run.validate_every is not None:
        validations = ceil(steps * epochs / run.validate_every)
    reads = None if run.store_bytes is None else step_bytes / first_step_s
    return Forecast(
        steps=steps,
        epochs=epochs,
        step_s=step_s,
        first_step_s=first_step_s,
        exchange_s=exchange_s,
        train_s=steps * (first * first_step_s + (epochs - first) * step_s),
        validations=validations,
        validate_s=_all_validations_s(hosts, run, validations),
        memory_bytes=memory_bytes,
        cached_share=cached,
        disk_bytes=_disk_bytes(run),
        read_bytes_per_s=reads,
        network_bytes=network_bytes,
        fits=memory_bytes <= hosts.memory,
        limit=_limit(run, computed_s, exchange_s, network_s, disk_s),
    )


def _steps(run: MeasuredRun, batch_size: int) -> int:
    """Return the steps of an epoch. ConfigError C398 if ``last=drop`` leaves none."""
    if run.last != "drop":
        return ceil(run.epoch_records / batch_size)
    steps = run.epoch_records // batch_size
    if not steps:
        why = f"leaves nothing of {run.epoch_records} records, fewer than a batch of {batch_size}"
        raise missing("last = drop", why, "lower batch_size, or choose short or wrap")
    return steps


def _exchange_s(hosts: PlannedHosts, single: MeasuredRun, run: MeasuredRun) -> float:
    """Return what ranks of one host cost a step, scaled to their planned number.

    A ring sends 2 (N - 1) / N of the gradients from each rank. All ranks of a host share its
    memory, so that the time grows with their number beyond those that were measured.
    """
    if run.ranks == 1 or hosts.ranks_per_host == 1:
        return 0.0
    measured_s = max(0.0, run.step_s - single.step_s)
    more = max(1.0, hosts.ranks_per_host / run.ranks)
    return measured_s * more * _ring(hosts.ranks) / _ring(run.ranks)


def _ring(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


def _network_bytes(hosts: PlannedHosts, run: MeasuredRun) -> float:
    """Return what a host sends to the others in a step."""
    if hosts.hosts == 1:
        return 0.0
    return _ring(hosts.ranks) * run.weight_bytes


def _record_bytes(run: MeasuredRun) -> float:
    return (run.store_bytes or 0) / max(1, run.num_records)


def _with_disk(run: MeasuredRun, computed_s: float, disk_s: float) -> float:
    """Return the seconds of a step that also waits ``disk_s`` for the disk."""
    if run.reads_ahead:
        return max(computed_s, disk_s)
    return computed_s + disk_s


def _cached_share(hosts: PlannedHosts, run: MeasuredRun, memory_bytes: float) -> float:
    """Return the share of an epoch's records that stays in memory after the first epoch."""
    read_bytes = _record_bytes(run) * min(run.num_records, run.epoch_records)
    if not read_bytes:
        return 1.0
    return min(1.0, max(0.0, hosts.memory - memory_bytes) / read_bytes)


def _all_validations_s(hosts: PlannedHosts, run: MeasuredRun, validations: int) -> float | None:
    if run.validate_s is None:
        return None
    return validations * run.validate_s * run.ranks / hosts.ranks


def _disk_bytes(run: MeasuredRun) -> float:
    """Return the bytes of the training set, the states that are kept, and two files of weights."""
    return (run.store_bytes or 0) + run.keep * run.state_bytes + 2 * run.weight_bytes


def _limit(
    run: MeasuredRun, computed_s: float, exchange_s: float | None, network_s: float, disk_s: float
) -> str:
    """Return what sets the pace of the first epoch."""
    if disk_s > computed_s:
        return "disk"
    if exchange_s is not None and exchange_s > computed_s / 2:
        return "network" if network_s == exchange_s else "exchange"
    return "preparing records" if run.wait_share > 1 / 2 else "computing"
