"""Measured runs for tests."""

from dataclasses import replace

from framework.commands.plan.measured_run import MeasuredRun

SINGLE = MeasuredRun(
    ranks=1,
    cores_per_rank=2,
    rank_batch=50,
    step_s=0.1,
    wait_share=0.0,
    spread=0.02,
    gpu=None,
    memory_bytes=5e8,
    state_bytes=2_000_000,
    weight_bytes=1_000_000,
    num_records=1000,
    epoch_records=1000,
    last="short",
    store_bytes=100_000_000,
    reads_ahead=True,
    validate_s=1.0,
    keep=2,
    epochs=10,
    max_steps=None,
    validate_every=None,
)
DOUBLE = replace(SINGLE, ranks=2, step_s=0.12)
