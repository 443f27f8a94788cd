"""Muon for the matrices of a model, and AdamW for all other parameters."""

from collections.abc import Iterable, Sequence
from typing import Any, final

import torch

from framework.errors import ConfigError
from framework.optim.joined import Joined

NAME = "name"  # of a group, for people


@final
class Muon(Joined):
    """torch's Muon for every parameter of two dimensions, and AdamW for the others.

    Both have the same ``lr`` and ``weight_decay``, also those of a group, since the update of a
    matrix is scaled to the size of AdamW's. ``momentum`` is Muon's, and ``betas`` are AdamW's.

    Raises:
        ConfigError: C364 for a torch without Muon, or a model without matrices.

    Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024. The
    scale: Liu et al., "Muon is scalable for LLM training", 2025.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float,
        betas: Sequence[float],
        weight_decay: float,
    ) -> None:
        if "Muon" not in torch.optim.__all__:
            fix = "install torch 2.9 or newer, or choose adamw"
            raise ConfigError(364, "optim = muon", f"torch {torch.__version__} has none", fix)
        groups = list(params)
        if groups and not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        options = {"lr": lr, "momentum": momentum, "betas": betas, "weight_decay": weight_decay}
        matrices: list[dict[str, Any]] = []
        others: list[dict[str, Any]] = []
        for group in groups:
            own = list(group["params"])
            for kind, word, chosen in (
                (matrices, "matrices", [each for each in own if each.dim() == 2]),
                (others, "no matrices", [each for each in own if each.dim() != 2]),
            ):
                name = f"{group[NAME]}, {word}" if NAME in group else word
                if chosen:
                    kind.append({**options, **group, "params": chosen, NAME: name})
        if not matrices:
            what = "is for matrices, and no parameter has two dimensions"
            raise ConfigError(364, "optim = muon", what, "choose another, such as optim=adamw")
        parts: dict[str, torch.optim.Optimizer] = {}
        parts["matrices"] = torch.optim.Muon(matrices, adjust_lr_fn="match_rms_adamw")
        if others:
            parts["others"] = torch.optim.AdamW(others)
        super().__init__(parts)
        self.defaults.update(options)
