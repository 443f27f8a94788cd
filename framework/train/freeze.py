"""Layers that are not trained, some of them until a step: the block ``freeze``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from torch import nn

from framework.errors import ConfigError
from framework.train.model_layers import keeps_statistics
from framework.train.name_patterns import is_match, matching, what_model_has

Thaws = dict[str, int | None]  # the step from which on each frozen parameter is trained, if any


def thaws_of(freeze: Any) -> Thaws:
    """Return ``freeze`` by pattern, with the step at which each thaws; None if it never does."""
    if isinstance(freeze, Mapping):
        return dict(freeze)
    return dict.fromkeys(freeze or [])


def freeze_layers(model: nn.Module, freeze: Any) -> Thaws:
    """Freeze the parameters that ``freeze`` names, before the model is wrapped.

    Return when each thaws, by its name. Parameters that the model itself has frozen stay so.

    Raises:
        ConfigError: C312 for a pattern without parameters, for two patterns with the same one, or
            if nothing is left to train.
    """
    names = [name for name, _ in model.named_parameters()]
    thaws: Thaws = {}
    for pattern, step in thaws_of(freeze).items():
        members = matching(pattern, names)
        where = f"freeze = {pattern}"
        if not members:
            what = f"matches no parameter of the model; {what_model_has(pattern, names)}"
            raise ConfigError(312, where, what, "give names of modules or parameters")
        if taken := [name for name in members if name in thaws]:
            what = f"matches {taken[0]}, which another entry has"
            raise ConfigError(312, where, what, "name each layer once")
        thaws |= dict.fromkeys(members, step)
    for name, parameter in model.named_parameters():
        if name in thaws:
            if not parameter.requires_grad:
                del thaws[name]
            parameter.requires_grad_(False)
    if thaws and not any(parameter.requires_grad for parameter in model.parameters()):
        shown = ", ".join(thaws_of(freeze))
        fix = "leave out the layers that shall learn"
        raise ConfigError(312, f"freeze = {shown}", "leaves nothing to train", fix)
    return thaws


@final
class Freeze:
    """The frozen layers of a model, which thaw step by step.

    A frozen parameter has no gradient, so that no optimizer moves or decays it. Batch norm whose
    own parameters are all frozen, or whose statistics belong to a frozen module, does not update
    its statistics.

    Args:
        model: The user's own, inside what wraps it.
        thaws: From ``freeze_layers``.
        patterns: The names in the block ``freeze`` and their steps.
        rewrap: Wraps the model anew after other parameters need gradients.

    Attributes:
        steps: After how many optimizer steps something thaws.
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
        self.steps = {step for step in thaws.values() if step is not None}
        self._step = 0
        self._norms = _statistics(model, patterns)

    def is_due(self, step: int) -> bool:
        """Return whether something thaws after ``step`` optimizer steps."""
        return step in self.steps

    def is_frozen(self, name: str) -> bool:
        """Return whether a parameter is frozen now."""
        if name not in self.thaws:
            return False
        return _lasts(self.thaws[name], self._step)

    def move_to(self, step: int, wrapped: nn.Module) -> nn.Module:
        """Freeze what is frozen after ``step`` steps, and thaw all else.

        Return the model in its wrap, which is a new one if ``wrapped`` does not fit any more. All
        ranks call this together.
        """
        before = {name for name in self.thaws if self.is_frozen(name)}
        self._step = step
        frozen = {name for name in self.thaws if self.is_frozen(name)}
        if frozen == before:
            return wrapped
        for name, parameter in self.model.named_parameters():
            if name in self.thaws:
                parameter.requires_grad_(name not in frozen)
        return self._rewrap(wrapped)

    def hold(self) -> None:
        """Switch frozen batch norms to evaluation, after the model was switched to training."""
        for module, step in self._norms:
            if _lasts(step, self._step):
                module.eval()


def _lasts(thaw: int | None, step: int) -> bool:
    return thaw is None or step < thaw


def _statistics(model: nn.Module, patterns: Thaws) -> Sequence[tuple[nn.Module, int | None]]:
    """Return the modules with running statistics that freeze, and when each thaws.

    A module is frozen while all of its own parameters are. One without parameters is if its name
    matches.
    """
    norms: list[tuple[nn.Module, int | None]] = []
    for place, module in model.named_modules():
        if keeps_statistics(module):
            own = [name for name, _ in module.named_parameters(place)] or [place]
            steps = [
                next((step for pattern, step in patterns.items() if is_match(name, pattern)), 0)
                for name in own
            ]
            known = [step for step in steps if step is not None]
            thaw = min(known, default=None)
            if _lasts(thaw, 0):
                norms.append((module, thaw))
    return norms
