"""Decide whether steps can be captured as a CUDA graph."""

from typing import Any

from framework.config.signature import static_signature
from framework.contracts.data import Source
from framework.contracts.parallel import Parallel
from framework.train.lr_scaling import without_scaling

Config = dict[str, Any]


def fused(optim: Config) -> Config:
    """Return the optimizer's block with ``fused: true``, if the optimizer has it and nothing else
    is typed.

    Only a fused optimizer reads its learning rate anew at every replay.
    """
    signature = static_signature(str(optim["_target_"]))
    can_fuse = signature is not None and "fused" in signature.names
    if not can_fuse or optim.get("foreach") or optim.get("differentiable"):
        return optim
    return {"fused": True, **optim}


def graph_refusal(config: Config, parallel: Parallel, source: Source) -> str | None:
    """Return why steps cannot be captured, or None if they can.

    Args:
        config: Plain values, resolved.
        parallel: May refuse, as several replicas do.
        source: May refuse, as DALI does.

    """
    device = parallel.device.type
    reads_rates = fused(without_scaling(config["optim"])).get("fused")
    reasons = (
        f"{device} has no graphs" if device != "cuda" else None,
        parallel.graph_refusal,
        source.graph_refusal,
        "a step of several passes is not captured" if config["accumulate"] > 1 else None,
        _precision_refusal(config["precision"]),
        "on_nan=skip looks at every step" if config["on_nan"] == "skip" else None,
        None if reads_rates else "only a fused optimizer reads its rate anew",
    )
    return next(filter(None, reasons), None)


def _precision_refusal(block: Config) -> str | None:
    return "fp16's scaling looks at every step" if block.get("dtype") == "fp16" else None
