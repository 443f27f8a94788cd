"""Facts for the rules' tables: a middling machine and store, and what a case changes of them."""

from dataclasses import replace

from framework.commands.diagnose.facts import DiagnosisFacts, Machine, Rates, Settings, Storage

GB = 1 << 30
STORE = Storage(
    "photos",
    "folder",
    10_000,
    50e3,
    "image",
    "solid state",
    1.0,
    (300, 400),
    3,
    False,
    None,
    "photos-packed",
    {"val": "val"},
    {"val": "val-packed"},
)
RATES = Rates(
    compute=1000.0,
    whole=250.0,
    loader=500.0,
    compute_cores=1.0,
    other=950.0,
    other_size=32,
    read=5000.0,
    prepare=300.0,
    prepare_two=590.0,
    wait=0.7,
)
FACTS = DiagnosisFacts(
    Machine(4, 16 * GB), Settings(64, 2, "thread", "prefetch", "fp32"), RATES, STORE
)


def facts(machine=None, settings=None, rates=None, storage=None, **own) -> DiagnosisFacts:
    """Return ``FACTS`` with these changes, part by part."""
    changed = replace(
        FACTS,
        machine=replace(FACTS.machine, **(machine or {})),
        settings=replace(FACTS.settings, **(settings or {})),
        rates=replace(FACTS.rates, **(rates or {})),
        **own,
    )
    return changed if storage is None else replace(changed, storage=replace(STORE, **storage))


FINE = {"whole": 990.0, "wait": 0.0}  # of rates: data is not the problem
CUDA = {"gpu": "a GPU", "bf16": True}  # of the machine
# Of rates: 64 ms on a resident batch, 128 while data is read: nothing waits
SLOWED = {
    "whole": 480.0,
    "loader": 1200.0,
    "prepare": 1200.0,
    "prepare_two": 1250.0,
    "wait": 0.02,
    "compute_spans_s": {"forward": 0.03, "backward": 0.03, "optimizer": 0.004},
    "spans_s": {"wait": 0.003, "forward": 0.09, "backward": 0.034, "optimizer": 0.004},
}
