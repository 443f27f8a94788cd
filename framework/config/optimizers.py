"""Build the optimizer of a run, or one for each part of the model, and give each phase its own."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from framework.config.assemble import Assembly, fused, fuses_by_default
from framework.config.build import build
from framework.contracts.parallel import Parallel
from framework.contracts.training import HasPhases, Objective
from framework.errors import ConfigError
from framework.optim.joined import Joined
from framework.train import parameter_groups
from framework.train.objective_state import ObjectiveState
from framework.train.parameter_groups import GROUP


def build_optimizer(assembly: Assembly, model: nn.Module, owned: ObjectiveState) -> Optimizer:
    """Build the optimizer over a wrapped model and what the objective owns, with scaled rates.

    ConfigError C102, C147, C310, C311, C362 for groups and parts that do not fit the model.
    """
    chosen = assembly.config["optim"]
    params: list[Any] = list(model.parameters())
    if owned.weights:
        assembly.notes.append(owned.note)
    own = {name: weight for weight, name in owned.weights.items()}
    inner = assembly.parallel.unwrap(model)
    if chosen.get(parameter_groups.PARTS):
        names = [*dict(inner.named_parameters()), *own]
        blocks = parameter_groups.part_blocks(chosen)
        parts: dict[str, Optimizer] = {}
        for part, members in parameter_groups.parts_of(chosen, names).items():
            block, where, name = chosen, "optim", ""
            if part in blocks:
                block, where, name = blocks[part], f"optim.parts.{part}", part
            groups = parameter_groups.parameter_groups(inner, block, own, members, name)
            parts[part] = _build(assembly, model, where, block, groups)
        optimizer: Optimizer = Joined(parts)
    else:
        decays_by_layer = chosen.get("layer_decay") is not None
        if chosen.get("groups") or chosen.get("no_decay") or decays_by_layer:
            params = parameter_groups.parameter_groups(inner, chosen, own)
        elif owned.weights:
            of_objective = {"params": list(owned.weights), parameter_groups.NAME: GROUP}
            params = [{"params": params, parameter_groups.NAME: "model"}, of_objective]
        optimizer = _build(assembly, model, "optim", chosen, params)
    for group in optimizer.param_groups:
        group["lr"] *= assembly.scaling.factor
    return optimizer


def _build(
    assembly: Assembly, model: nn.Module, where: str, chosen: Mapping[str, Any], params: list[Any]
) -> Optimizer:
    block = parameter_groups.optimizer_keys(chosen)
    fuses = fuses_by_default(block, model)  # one kernel updates all parameters
    if assembly.captures:
        fuses = all(parameter.is_floating_point() for parameter in model.parameters())
        if not fuses:
            what = "no fused optimizer takes complex parameters"
            assembly.say(f"note: cuda_graph=true: {what}; steps run kernel by kernel")
    if fuses:
        block = fused(block)
    optimizer: Optimizer = build(where, block, assembly.allowed, params=params)
    parameter_groups.check_options(optimizer, chosen, where)
    return optimizer


def phases_of(
    objective: Objective, config: Mapping[str, Any], parallel: Parallel
) -> tuple[str, ...]:
    """Return the phases of an objective, one for each part of the model. ConfigError C363."""
    if not isinstance(objective, HasPhases):
        return ()
    refusals = {f"parallel = {config['parallel']['_target_']}": parallel.phase_refusal}
    if config["cuda_graph"]:
        refusals["cuda_graph = true"] = "a captured step is a single pass"
    if config["on_nan"] == "skip":
        refusals["on_nan = skip"] = "the phases before the one that is not finite have stepped"
    for where, refusal in refusals.items():
        if refusal is not None:
            what = f"an objective with phases cannot train so, since {refusal}"
            fix = "leave it out, or choose parallel=none or parallel=ddp"
            raise ConfigError(363, where, what, fix)
    phases = tuple(objective.phases)
    parts = config["optim"].get(parameter_groups.PARTS) or {}
    if sorted(phases) != sorted(parts):
        what = f"must name each of optim.parts once, and these are: {', '.join(parts) or 'none'}"
        example = ", ".join(f"{phase}: {{match: {phase}}}" for phase in phases)
        fix = f"give each phase a part, as in 'optim.parts={{{example}}}'"
        raise ConfigError(363, f"objective.phases = [{', '.join(phases)}]", what, fix)
    return phases


def by_phase(phases: Sequence[str], optimizer: Optimizer, model: nn.Module) -> dict[str, Optimizer]:
    """Return the optimizer of each phase. ConfigError C363 for a parameter that none trains."""
    if not phases or not isinstance(optimizer, Joined):
        return {}
    names = {id(weight): name for name, weight in model.named_parameters()}
    for part, rest in optimizer.parts.items():
        weights = [weight for group in rest.param_groups for weight in group["params"]]
        left = [weight for weight in weights if weight.requires_grad and part not in phases]
        if left:
            name = names.get(id(left[0]), "a weight of the objective")
            what = f"lacks {name}, which no phase would train"
            raise ConfigError(363, "optim.parts", what, "give it to a part, or freeze it")
    return {phase: optimizer.parts[phase] for phase in phases}
