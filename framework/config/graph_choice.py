"""Decide whether steps can be captured as a CUDA graph."""

from typing import Any

from torch import nn

from framework.config.build_schedule import is_foreign
from framework.config.signature import static_signature
from framework.contracts.data import Source
from framework.contracts.parallel import Parallel
from framework.train.ema import is_sharded
from framework.train.parameter_groups import optimizer_keys

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


def fuses_by_default(optim: Config, model: nn.Module) -> bool:
    """Return whether torch's optimizer may update all weights of ``model`` in one kernel.

    It takes no sparse gradients, which embeddings may have, and not every sharded weight.
    """
    weights = list(model.parameters())
    on_gpu = all(weight.is_cuda and weight.is_floating_point() for weight in weights)
    if not on_gpu or any(map(is_sharded, weights)):
        return False
    is_sparse = any(getattr(module, "sparse", False) for module in model.modules())
    return not is_sparse and str(optim["_target_"]).startswith("torch.optim.")


def graph_refusal(config: Config, parallel: Parallel, source: Source) -> str | None:
    """Return why steps cannot be captured, or None. Several replicas and DALI may refuse."""
    device = parallel.device.type
    reads_rates = fused(optimizer_keys(config["optim"])).get("fused")
    scales = config["precision"].get("dtype") == "fp16"
    reasons = (
        device != "cuda" and f"{device} has no graphs",
        parallel.graph_refusal,
        source.graph_refusal,
        config["accumulate"] > 1 and "a step of several passes is not captured",
        scales and "fp16's scaling looks at every step",
        config["on_nan"] == "skip" and "on_nan=skip looks at every step",
        is_foreign(config["schedule"]) and "a scheduler of torch works on the host",
        not reads_rates and "only a fused optimizer reads its rate anew",
    )
    return next((reason for reason in reasons if isinstance(reason, str)), None)
