"""Decide from the configuration whether steps can be captured as a CUDA graph."""

from typing import Any

import torch

from framework.config.schema import DALI
from framework.config.signature import static_signature


def fused(optim: dict[str, Any]) -> dict[str, Any]:
    """The optimizer's block as a graph wants it, where there is such and it says nothing else: fused ones read their rate anew at every step."""
    signature = static_signature(str(optim["_target_"]))
    able = (
        signature is not None
        and "fused" in signature.names
        and not (optim.get("foreach") or optim.get("differentiable"))
    )
    return {"fused": True, **optim} if able else optim


def refusal(config: dict[str, Any], device: torch.device) -> str | None:
    """Why steps of ``config`` are not captured; None where they can be."""
    reasons = {
        f"{device.type} has no graphs": device.type != "cuda",
        "a step of several replicas is not captured": not config["parallel"]["_target_"].endswith(
            ".NoParallel"
        ),
        "a step of several passes is not captured": config["accumulate"] > 1,
        "DALI frees memory in threads of its own, which capturing forbids": str(
            config["data"]["source"]["_target_"]
        )
        == DALI,
        "fp16's scaling looks at every step": config["precision"].get("dtype") == "fp16",
        "on_nan=skip looks at every step": config["on_nan"] == "skip",
        "only a fused optimizer reads its rate anew": not config["optim"].get("fused"),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
