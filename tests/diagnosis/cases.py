"""Facts for the rules' tables: a middling machine and store, and what a case changes of them."""

from dataclasses import fields, replace

from framework.contracts.span import LateRank, RankSpan
from framework.diagnosis.facts import Facts, RankFacts, Storage
from framework.diagnosis.judge import verdicts_of
from framework.measure.usage import MachineUse

GB = 1 << 30
STORE = Storage(
    *("photos", "folder", 10_000, 50e3, "image", "solid state", 1.0),
    (300, 400),
    3,
    False,
    {"train": ("photos", "photos-packed"), "val": ("val", "val-packed")},
)
RUN = {"batch_size": 64, "workers": 2, "kind": "thread", "loader": "prefetch", "precision": "fp32"}
RATES = {"compute": 1000.0, "whole": 250.0, "loader_rate": 500.0, "wait": 0.7}
RATES |= {"other": 950.0, "read": 5000.0, "prepare": 300.0, "prepare_two": 590.0}
CORES = {"num_cores": 4, "allowed_cores": 4, "all_cores": 4, "compute_cores": 1.0}
MEMORY = {"free_memory_bytes": 16 * GB, "memory_bytes": 16 * GB}
FACTS = Facts(**RUN, **RATES, **CORES, **MEMORY, other_size=32, storage=STORE)


def facts(**changes) -> Facts:
    """Return ``FACTS`` with these changes of its fields, of its store's and of ``use``'s."""
    storage, use = (
        {field.name: changes.pop(field.name) for field in fields(part) if field.name in changes}
        for part in (Storage, MachineUse)
    )
    known = {"storage": replace(STORE, **storage), "use": MachineUse(1.0, **use)}
    return replace(FACTS, **{**known, **changes})


def verdict_of(rule, known):
    """Return the verdict with this name; None if no rule gives it. ``known`` may be changes."""
    known = facts(**known) if isinstance(known, dict) else known
    verdict = next((verdict for verdict in verdicts_of(known) if verdict.rule == rule), None)
    assert verdict is None or (verdict.gain >= 1 and verdict.says and verdict.why)
    return verdict


FINE = {"whole": 990.0, "wait": 0.0}  # of rates: data is not the problem
CUDA = {"gpu": "a GPU", "bf16": True}  # of the machine
# Of rates: 64 ms on a resident batch, 128 while data is read: nothing waits
SLOWED = {"whole": 480.0, "loader_rate": 1200.0, "prepare": 1200.0, "prepare_two": 1250.0}
SLOWED |= {
    "wait": 0.02,
    "compute_spans_s": {"forward": 0.03, "backward": 0.03, "optimizer": 0.004},
    "spans_s": {"wait": 0.003, "forward": 0.09, "backward": 0.034, "optimizer": 0.004},
}
SPANS = {
    "wait": RankSpan(0.001, 0.002, 0.003, 0),
    "forward": RankSpan(0.01, 0.02, 0.03, 1),
    "exchange": RankSpan(0.04, 0.05, 0.06, 0),
}
LATE = LateRank(1, "forward", 0.98, 0.02, 0.4)
HUGE = {"name": "a/huge.jpg", "mean_s": 0.5, "num_reads": 2, "size_bytes": 9_000_000}
SLOW_RECORDS = {"records": [HUGE], "num_slow": 2, "num_records": 1000, "numbers": [7]}
SLOW_RECORDS |= {"slow_s": 1.0, "read_s": 2.0, "usual_s": 0.001}
SLOW_RECORDS |= {"wait_s": 4.0, "slow_wait_s": 3.0, "saved_s": 2.0}
LIMITED = {"compute": 1000.0, "whole": 250.0, "wait": 0.7}  # of rates: data limits


def rank_facts(**changes):
    return RankFacts(**{"num_ranks": 2, "num_steps": 40, "step_s": 0.1, "spans": SPANS, **changes})
