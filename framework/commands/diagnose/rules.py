"""All rules of a diagnosis.

A rule is a function of the facts, named like the cause that it looks for. Its module holds it in
``RULES``, and names in ``PARTS`` the parts of a step that its causes slow.
"""

from dataclasses import replace

from framework.commands.diagnose import (
    compute_rules,
    loading_rules,
    machine_rules,
    python_rules,
    record_rules,
    run_rules,
    storage_rules,
)
from framework.commands.diagnose.facts import DiagnosisFacts
from framework.commands.diagnose.verdict import Verdict

MODULES = (
    loading_rules,
    storage_rules,
    record_rules,
    compute_rules,
    python_rules,
    machine_rules,
    run_rules,
)


def verdicts_of(facts: DiagnosisFacts) -> list[Verdict]:
    """Return the verdicts of all rules, by predicted gain."""
    verdicts: list[Verdict] = []
    for module in MODULES:
        for rule in module.RULES:
            verdict = rule(facts)
            if verdict is not None:
                parts = verdict.parts or module.PARTS
                verdicts.append(replace(verdict, parts=parts, modeled=verdict.gain))
    return sorted(verdicts, key=lambda verdict: -verdict.gain)
