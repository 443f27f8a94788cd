"""Print a forecast: what it rests on, and what the run will take."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from framework.commands.plan.forecast import Forecast
from framework.commands.plan.measured_run import MeasuredRun
from framework.commands.plan.planned_hosts import PlannedHosts
from framework.commands.print_table import print_table
from framework.commands.report.units import plural


def show_plan(hosts: PlannedHosts, runs: Sequence[MeasuredRun], plan: Forecast) -> None:
    """Print the forecast."""
    batch_size = runs[-1].rank_batch * hosts.ranks
    print_table("measured", ["run"], ["ms a step", "spread"], [_measured(run) for run in runs])
    title = f"forecast for {_hosts(hosts)}"
    print_table(title, ["figure"], ["value"], rows(hosts, plan, batch_size), [""])
    for line in notes(hosts, plan):
        print(f"note: {line}")


def _measured(run: MeasuredRun) -> list[str]:
    where = run.gpu or f"{plural(run.cores_per_rank, 'core')} each"
    name = f"{plural(run.ranks, 'rank')}, {run.rank_batch} records each, {where}"
    return [name, f"{1e3 * run.step_s:.2f}", f"{100 * run.spread:.0f} %"]


def _hosts(hosts: PlannedHosts) -> str:
    cores = plural(hosts.cores, "core")
    where = f" with a {hosts.gpu} each" if hosts.gpu else f", {cores} a host"
    return f"{plural(hosts.hosts, 'host')} x {plural(hosts.ranks_per_host, 'rank')}{where}"


def rows(hosts: PlannedHosts, plan: Forecast, batch_size: int) -> list[list[str]]:
    """Return the figures, their values and what they mean."""
    later = f"{1e3 * plan.step_s:.2f} ms"
    memory = f"of {_bytes(hosts.memory)}"
    cached = f"{100 * plan.cached_share:.0f} % of the training set stays in memory"
    table = [
        ["a step, first epoch", f"{1e3 * plan.first_step_s:.2f} ms", f"{plan.limit} sets the pace"],
        ["a step, later epochs", later, cached],
        ["records/s", f"{batch_size / plan.step_s:,.0f}", "of all ranks"],
        ["an epoch", _time(plan.steps * plan.step_s), f"{plan.steps:,} steps"],
        ["training", _time(plan.train_s), f"{round(plan.epochs, 2):g} epochs"],
        ["memory of a host", _bytes(plan.memory_bytes), memory],
        ["disk", _bytes(plan.disk_bytes), "training set, states and weights"],
    ]
    if plan.validate_s is not None:
        number = plural(plan.validations, "validation")
        table.insert(5, ["validation", _time(plan.validate_s), number])
    if plan.read_bytes_per_s is not None:
        rate = f"{_bytes(plan.read_bytes_per_s)}/s"
        table.append(["reading, first epoch", rate, "a host, from its disk"])
    if hosts.ranks > 1 and plan.exchange_s is not None:
        exchange = f"{1e3 * plan.exchange_s:.2f} ms"
        table.append(["exchanging gradients", exchange, "of a step"])
    if hosts.hosts > 1:
        traffic = f"{_bytes(plan.network_bytes)} a step"
        table.append(["network", traffic, "sent by a host"])
    return table


def notes(hosts: PlannedHosts, plan: Forecast) -> list[str]:
    """Return what the forecast does not know, or what will go wrong."""
    lines: list[str] = []
    if not plan.fits:
        lines.append("the ranks do not fit into the memory: fewer ranks or a smaller batch_size")
    if plan.validate_s is None:
        lines.append("validation was not measured, and comes on top")
    if hosts.disk is None and plan.read_bytes_per_s is not None:
        lines.append("disk= is not given: the disk is taken to be as fast as reading needs")
    if hosts.hosts > 1:
        lines.append("the network is taken to carry its whole rate, and to have no latency")
    return lines


def plan_json(hosts: PlannedHosts, runs: Sequence[MeasuredRun], plan: Forecast) -> dict[str, Any]:
    """Return all figures as plain values."""
    return {"hosts": asdict(hosts), "measured": list(map(asdict, runs)), "forecast": asdict(plan)}


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} minutes"
    return f"{seconds / 3600:.1f} hours"
