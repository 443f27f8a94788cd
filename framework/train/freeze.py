"""The layers of a model: its blocks, and those that are not trained, some until a step."""

import math
from collections.abc import Callable, Mapping
from typing import Any, final

from torch import nn

from framework.errors import ConfigError
from framework.train.parameter_groups import is_match, matching, what_model_has

Thaws = dict[str, int | None]  # the step from which on each frozen parameter is trained, if any
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def thaws_of(freeze: Any) -> Thaws:
    """Return ``freeze`` by pattern, with the step at which each thaws; None if it never does."""
    return dict(freeze) if isinstance(freeze, Mapping) else dict.fromkeys(freeze or [])


def freeze_layers(model: nn.Module, freeze: Any) -> Thaws:
    """Freeze the parameters that ``freeze`` names, before the model is wrapped.

    Return when each thaws, by its name. Parameters that the model itself has frozen stay so.
    ConfigError C312 for a pattern without parameters or with those of another, or if nothing is
    left to train.
    """
    parameters = dict(model.named_parameters())
    thaws: Thaws = {}
    for pattern, step in thaws_of(freeze).items():
        members = matching(pattern, parameters)
        where = f"freeze = {pattern}"
        if not members:
            what = f"matches no parameter of the model; {what_model_has(pattern, parameters)}"
            raise ConfigError(312, where, what, "give names of modules or parameters")
        if taken := [name for name in members if name in thaws]:
            what = f"matches {taken[0]}, which another entry has"
            raise ConfigError(312, where, what, "name each layer once")
        thaws |= dict.fromkeys(members, step)
    thaws = {name: step for name, step in thaws.items() if parameters[name].requires_grad}
    for name in thaws:
        parameters[name].requires_grad_(False)
    if thaws and not any(parameter.requires_grad for parameter in parameters.values()):
        where = f"freeze = {', '.join(thaws_of(freeze))}"
        fix = "leave out the layers that shall learn"
        raise ConfigError(312, where, "leaves nothing to train", fix)
    return thaws


@final
class Freeze:
    """The frozen layers of a model, which thaw step by step.

    A frozen parameter has no gradient, so that no optimizer moves or decays it. Batch norm whose
    own parameters are all frozen, or whose statistics belong to a frozen module, does not update
    its statistics.

    ``model`` is the user's own, and ``rewrap`` wraps it anew after other parameters need gradients.
    ``patterns`` are the names in the block ``freeze`` and their steps.
    """

    def __init__(
        self,
        model: nn.Module,
        thaws: Thaws,
        patterns: Thaws,
        rewrap: Callable[[nn.Module], nn.Module],
    ) -> None:
        self.model = model
        self.thaws = thaws
        self._rewrap = rewrap
        self._step = 0
        # after how many optimizer steps something thaws
        self.steps = {step for step in thaws.values() if step is not None}
        self._thaws = {name: math.inf if step is None else step for name, step in thaws.items()}
        # Modules with running statistics that freeze, and when each thaws: with the first of its
        # own parameters. Without parameters, its name decides.
        self._norms: list[tuple[nn.Module, float]] = []
        for place, module in model.named_modules():
            if "running_mean" not in dict(module.named_buffers(recurse=False)):
                continue
            steps: list[float] = []
            for name in [own for own, _ in module.named_parameters(place)] or [place]:
                matches = [step for key, step in patterns.items() if is_match(name, key)]
                step = matches[0] if matches else 0
                steps.append(math.inf if step is None else step)
            self._norms.append((module, min(steps)))

    def is_frozen(self, name: str) -> bool:
        """Return whether a parameter is frozen now."""
        return self._step < self._thaws.get(name, 0)

    def move_to(self, step: int, wrapped: nn.Module) -> nn.Module:
        """Freeze what is frozen after ``step`` steps, and thaw all else.

        Return the model in its wrap, which is a new one if ``wrapped`` does not fit any more. All
        ranks call this together.
        """
        before = list(map(self.is_frozen, self._thaws))
        self._step = step
        if list(map(self.is_frozen, self._thaws)) == before:
            return wrapped
        for name, parameter in self.model.named_parameters():
            if name in self._thaws:
                parameter.requires_grad_(not self.is_frozen(name))
        return self._rewrap(wrapped)

    def hold(self) -> None:
        """Switch frozen batch norms to evaluation, after the model was switched to training."""
        for module, thaw in self._norms:
            if self._step < thaw:
                module.eval()


def is_normalization(module: nn.Module) -> bool:
    """Return whether a module normalizes.

    torch's classes and those of other libraries have ``Norm`` in their names. Each of their own
    parameters is a scale or a shift per channel, which has at most one dimension.
    """
    own = list(module.parameters(recurse=False))
    return "Norm" in type(module).__name__ and all(weight.dim() <= 1 for weight in own)


def normalization_parameters(model: nn.Module) -> set[str]:
    """Return the names of the parameters of a model's normalization modules."""
    return {
        f"{place}.{name}".removeprefix(".")
        for place, module in model.named_modules()
        if is_normalization(module)
        for name, _ in module.named_parameters(recurse=False)
    }


@final
class ModelBlocks:
    """The blocks of a model in the order in which it names them.

    The model itself is opened. So is a Sequential or a list with modules that have parts, and a
    module with such a list of modules inside. Everything else is a block. A normalization module
    belongs to the block before it, and a parameter of an opened module to the block after it.

    Attributes:
        names: The name of each block's first module.
        number_of: The number of each parameter's block, from 0, by the parameter's name.
    """

    def __init__(self, model: nn.Module) -> None:
        self.names: list[str] = []
        self.number_of: dict[str, int] = {}
        self._open(model, "")
        self.depth = max(1, len(self.names))
        self.number_of = {name: min(n, self.depth - 1) for name, n in self.number_of.items()}

    def _open(self, module: nn.Module, prefix: str) -> None:
        for name, _ in module.named_parameters(recurse=False):
            self.number_of[f"{prefix}{name}"] = len(self.names)
        for name, child in module.named_children():
            place = f"{prefix}{name}"
            if next(child.parameters(), None) is None:
                continue
            if _is_opened(child):
                self._open(child, f"{place}.")
                continue
            if not (self.names and is_normalization(child)):
                self.names.append(place)
            for inner, _ in child.named_parameters():
                self.number_of[f"{place}.{inner}"] = len(self.names) - 1


def _is_opened(module: nn.Module) -> bool:
    if isinstance(module, CONTAINERS):
        return any(list(child.children()) for child in module.children())
    return any(
        list(child.children()) and not isinstance(child, CONTAINERS)
        for inner in module.modules()
        if isinstance(inner, CONTAINERS)
        for child in inner.children()
    )
