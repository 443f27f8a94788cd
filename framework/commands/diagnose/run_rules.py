"""Rules about what a run does beside its steps: validating, saving and reporting."""

import math

from framework.commands.diagnose.facts import DiagnosisFacts
from framework.commands.diagnose.run_facts import RunFacts, times_per_step
from framework.commands.diagnose.verdict import Verdict

# A smaller share of the run is not worth advice.
LEAST_SHARE = 0.05
# The share that the advised interval leaves.
TARGET_SHARE = 0.03


def frequent_validation(facts: DiagnosisFacts) -> Verdict | None:
    """Detect that validating takes much of the run."""
    run = facts.on_run
    if run is None or run.validate_every is None or not _matters(facts, run, "validating"):
        return None
    cost_s = run.validate_s + run.save_s + run.weights_s  # each is followed by a save
    every = _interval(facts, cost_s)
    left_s = cost_s / every
    before_s = cost_s / run.validate_every
    when = _every(run.validate_every, run)
    return Verdict(
        "frequent_validation",
        f"Validating takes {_percent(facts, run, 'validating')} of the run: "
        f"{1e3 * run.validate_s:,.0f} ms {when}, beside {_step_ms(facts):,.1f} ms a step.",
        f"Validate every {every:,} steps, which takes less than {100 * TARGET_SHARE:.0f} %.",
        _gain(facts, run, before_s - left_s),
        (f"validate_every={every}",),
        period_s=cost_s + run.validate_every * _step_s(facts),
    )


def _every(steps: float, run: RunFacts) -> str:
    if steps == run.epoch_steps:
        return f"every epoch of {run.epoch_steps:,} steps"
    return f"every {steps:,.0f} steps"


def frequent_saving(facts: DiagnosisFacts) -> Verdict | None:
    """Detect that saving states takes much of the run."""
    run = facts.on_run
    if run is None or not _matters(facts, run, "saving"):
        return None
    every = _interval(facts, run.save_s)
    often = {key: steps for key, steps in run.save_every.items() if steps < every}
    if not often:
        return None
    overrides = tuple(_less_often(key, every, facts, run) for key in often)
    keys = ", ".join(f"{key} every {steps:,.0f} steps" for key, steps in often.items())
    before_s = run.costs_s["saving"]
    return Verdict(
        "frequent_saving",
        f"Saving takes {_percent(facts, run, 'saving')} of the run: {1e3 * run.save_s:,.0f} ms "
        f"({keys}), beside {_step_ms(facts):,.1f} ms a step.",
        f"Save every {every:,} steps, which takes less than {100 * TARGET_SHARE:.0f} %. A run that "
        "is killed repeats the steps since the last save.",
        _gain(facts, run, before_s - run.save_s / every),
        overrides,
        period_s=1 / run.saves_per_step * _run_s(facts, run),
    )


def chatty_sinks(facts: DiagnosisFacts) -> Verdict | None:
    """Detect that writing reports takes much of the run."""
    run = facts.on_run
    if run is None or not _matters(facts, run, "reporting"):
        return None
    cost_s = math.fsum(run.report_s.values())
    every = min(_interval(facts, cost_s), run.epoch_steps)
    left_s = cost_s * times_per_step(every, run.epoch_steps)
    left = left_s / (_step_s(facts) + left_s)
    slowest = max(run.report_s, key=lambda name: run.report_s[name])
    share = run.report_s[slowest] / cost_s
    return Verdict(
        "chatty_sinks",
        f"Writing reports takes {_percent(facts, run, 'reporting')} of the run: "
        f"{1e3 * cost_s:,.1f} ms every {run.report_every:,} steps, beside "
        f"{_step_ms(facts):,.1f} ms a step. {100 * share:.0f} % of it is sink={slowest}.",
        f"Report every {every:,} steps, which takes {100 * left:.0f} % of the run. Every epoch of "
        f"{run.epoch_steps:,} steps ends with a report.",
        _gain(facts, run, run.costs_s["reporting"] - left_s),
        (f"report_every={every}",) if every > run.report_every else (),
        period_s=1 / run.reports_per_step * _run_s(facts, run),
        action=f"leave out sink={slowest}" if every <= run.report_every else "",
    )


PARTS = ("validating", "saving", "reporting")
RULES = (frequent_validation, frequent_saving, chatty_sinks)


def _step_s(facts: DiagnosisFacts) -> float:
    return facts.settings.batch_size / facts.rates.whole


def _step_ms(facts: DiagnosisFacts) -> float:
    return 1e3 * _step_s(facts)


def _matters(facts: DiagnosisFacts, run: RunFacts, name: str) -> bool:
    return run.shares(_step_s(facts))[name] >= LEAST_SHARE


def _percent(facts: DiagnosisFacts, run: RunFacts, name: str) -> str:
    return f"{100 * run.shares(_step_s(facts))[name]:.0f} %"


def _interval(facts: DiagnosisFacts, cost_s: float) -> int:
    """Return the steps between two of ``cost_s`` that leave the target share, in two digits."""
    least = cost_s / (TARGET_SHARE * _step_s(facts))
    digits = 10 ** max(0, math.floor(math.log10(least)) - 1)
    return max(1, math.ceil(least / digits) * digits)


def _run_s(facts: DiagnosisFacts, run: RunFacts) -> float:
    """Return the seconds of a step with what the run does beside it, on average."""
    return _step_s(facts) + math.fsum(run.costs_s.values())


def _gain(facts: DiagnosisFacts, run: RunFacts, saved_s: float) -> float:
    """Return the gain of a run whose steps take ``saved_s`` less on average."""
    run_s = _run_s(facts, run)
    return run_s / max(run_s - saved_s, _step_s(facts))


def _less_often(key: str, every: int, facts: DiagnosisFacts, run: RunFacts) -> str:
    """Return the override that makes a key save only every so many steps."""
    if key == "checkpoint.every_epochs":
        return f"{key}={math.ceil(every / run.epoch_steps)}"
    if key == "checkpoint.every_s":
        return f"{key}={math.ceil(every * _step_s(facts))}"
    return f"{key}={every}"
