"""What an objective of the user's owns: weights that are trained with the model's, and state."""

import copy
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from framework.contracts.parallel import Parallel
from framework.errors import ConfigError, say
from framework.train.checkpoint import is_plain, of_all_ranks
from framework.train.owned_objects import (
    FILLED,
    OwnedObjects,
    Value,
    is_fixed,
    is_same,
    put,
    with_content,
)
from framework.train.parameter_groups import GROUP


@final
class ObjectiveState:
    """Weights and state of an objective, or of the losses inside ``objective=loss``.

    State is that of its modules and of what else has ``state_dict``, and all other values that have
    changed. Ranks average the gradients, and take the buffers of modules from rank 0. Each rank
    keeps its own plain values.

    Args:
        objective: As it was built, before it saw a record.
        parallel: Modules move to its device if there are weights.
        say: Prints a warning of state that cannot be saved.
    """

    def __init__(
        self, objective: object, parallel: Parallel, say: Callable[[str], None] = say
    ) -> None:
        self._objective = objective
        self._parallel = parallel
        self._say = say
        self._start = OwnedObjects(objective)
        self._others: frozenset[int] = frozenset()  # the ids of the model's modules and weights
        self._warned = False
        self._modules = list(self._start.modules.values())
        self._known = {id(part) for module in self._modules for part in module.modules()}
        self.weights = self._start.weights
        for weight, name in self.weights.items():
            if is_lazy(weight):
                what = f"owns {name}, whose size its first call would decide"
                fix = "give the size, as with torch.nn.Linear instead of LazyLinear"
                raise ConfigError(392, GROUP, what, fix)
        for module in self._modules if self.weights else ():
            module.to(parallel.device)
        for weight in self.weights:
            weight.data = weight.data.to(parallel.device)
        if parallel.world_size > 1:
            self._take_from_first([weight.data for weight in self.weights])
            self.share_buffers()

    @property
    def is_there(self) -> bool:
        return bool(self._start.owners)

    @property
    def note(self) -> str:
        """A note on what is trained beside the model; "" if nothing is."""
        if not self.weights:
            return ""
        count = sum(weight.numel() for weight in self.weights)
        names = ", ".join(sorted(self.weights.values())[:4])
        more = ", ..." if len(self.weights) > 4 else ""
        return f"{count:,} weights of the objective are trained, too: {names}{more}"

    def check(self, refusal: str | None) -> None:
        """Check what the objective has. ConfigError C392 for what cannot be trained or kept.

        ``refusal`` says why no weights and no state can be kept; None if they can.
        """
        owned = [
            *sorted(self.weights.values()),
            *(name for module in self._modules for name, _ in module.named_buffers()),
            *self._start.keepers,
        ]
        if refusal and owned:
            raise _refused(f"owns {owned[0]}", refusal)
        if self._start.has_optimizer and self._parallel.world_size > 1:
            what = "has an optimizer of its own, whose gradients the ranks do not exchange"
            raise ConfigError(392, GROUP, what, "choose parallel=none")

    def check_called(self, model: nn.Module) -> OwnedObjects:
        """Check what a call on a few records has made, and return what there is now.

        ConfigError C392 for weights or state that were not there before. The objective may hold
        ``model``, which is trained anyway.
        """
        self._others |= {id(part) for part in (*model.modules(), *model.parameters())}
        now = OwnedObjects(self._objective, self._others)
        if made := self._made(now):
            what = f"makes {made[0]} in a call, so that it is not trained, or lost on a resume"
            fix = "make it in __init__; a call may fill it"
            raise ConfigError(392, GROUP, what, fix)
        return now

    def check_unchanged(self, before: OwnedObjects, refusal: str) -> None:
        """Check that nothing has changed since the first call, which made ``before``.

        What only the first call sets is no state, such as the number of classes. ConfigError C392.
        """
        now = OwnedObjects(self._objective, self._others)
        for where, values in now.values.items():
            for name in _changed(before.values.get(where, {}), values):
                raise _refused(f"changes {where}.{name}", refusal)

    def _made(self, now: OwnedObjects) -> list[str]:
        """Return the names of weights and keepers of state that were not there at the start."""
        made = [name for own, name in now.weights.items() if own not in self.weights]
        made += [name for name in now.keepers if name not in self._start.keepers]
        for where, root in now.modules.items():
            for name, module in root.named_modules(prefix=where):
                if id(module) not in self._known and [*module.parameters(), *module.buffers()]:
                    made.append(name)
        return made

    def average_gradients(self) -> None:
        """Give all ranks the mean of their gradients. A rank without one adds zeros.

        A weight without a gradient on any rank gets none. Only ranks that lack a gradient wait for
        the device.
        """
        weights, world_size = list(self.weights), self._parallel.world_size
        if world_size == 1 or not weights:
            return
        own: list[Tensor] = []
        for weight in weights:
            gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
            own.append(gradient.to_dense() if gradient.is_sparse else gradient)
        own += [weight.new_full((1,), weight.grad is not None) for weight in weights]
        sums = self._sums(own)
        for weight, total, number in zip(weights, sums, sums[len(weights) :], strict=False):
            if weight.grad is not None or number.item() > 0:
                weight.grad = total / world_size

    def share_buffers(self) -> None:
        """Give the modules of all ranks the buffers of rank 0."""
        if self._parallel.world_size > 1:
            self._take_from_first([own for module in self._modules for own in module.buffers()])

    def switch_to_evaluation(self) -> None:
        for module in self._modules:
            module.eval()

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the buffers of all modules, each with a name of its own."""
        for number, module in enumerate(self._modules):
            for name, buffer in module.named_buffers():
                yield f"{GROUP}.{number}.{name}", buffer

    @torch.no_grad()
    def _take_from_first(self, tensors: Sequence[Tensor]) -> None:
        leads = self._parallel.rank == 0
        given = [tensor if leads else torch.zeros_like(tensor) for tensor in tensors]
        for tensor, total in zip(tensors, self._sums(given), strict=True):
            tensor.copy_(total)

    def _sums(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums over all ranks, of one exchange for each dtype."""
        result = list(tensors)
        for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
            places = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
            flat = torch.cat([tensors[place].detach().flatten() for place in places])
            flat = self._parallel.sum_on_device(flat.byte() if dtype == torch.bool else flat)
            pieces = flat.to(dtype).split([tensors[place].numel() for place in places])
            for place, piece in zip(places, pieces, strict=True):
                result[place] = piece.view_as(tensors[place])
        return result

    def state_dict(self) -> dict[str, Any]:
        """Return the state: of modules and weights once, and ``of_ranks`` a dict for each rank.

        {} if there is none. All ranks call this together.
        """
        now = OwnedObjects(self._objective, self._others)
        for name in self._made(now):
            self._warn(f"{name} is made in training")
        modules = {
            name: {key: own for key, own in module.state_dict().items() if self._is_kept(name, own)}
            for name, module in self._start.modules.items()
        }
        keepers = {name: keeper.state_dict() for name, keeper in self._start.keepers.items()}
        keepers = {name: own for name, own in keepers.items() if self._is_kept(name, own)}
        changed = {where: self._changed_values(where, now) for where in now.owners}
        values = {name: own for name, own in changed.items() if own}
        of_ranks = of_all_ranks({"keepers": keepers, "values": values}, self._parallel)
        tensors = {name: own.detach() for name, own in self._start.tensors.items()}
        if not modules and not tensors and not any(any(rank.values()) for rank in of_ranks):
            return {}
        return {"modules": modules, "tensors": tensors, "of_ranks": of_ranks}

    def _is_kept(self, name: str, state: Any) -> bool:
        """Return whether a saved state may hold what ``state_dict`` returns, with a warning."""
        if not is_plain(state):
            self._warn(f"{name}.state_dict() has more than tensors and plain values")
            return False
        return True

    def _changed_values(self, where: str, now: OwnedObjects) -> dict[Any, Any]:
        """Return the changed values that can be restored, with a warning of others."""
        if where in now.saved_by_keepers:
            return {}
        kept: dict[Any, Any] = {}
        owner, start = now.owners[where], self._start.values.get(where)
        for name in _changed(start or {}, now.values[where]):
            value, plain = now.values[where][name]
            if start is not None and name in start and type(start[name].value) is type(value):
                can_put = not is_fixed(owner) or isinstance(value, FILLED)
            else:
                can_put = start is not None and is_plain(value)
                can_put &= not is_fixed(owner) and not isinstance(owner, list)
            if can_put:
                kept[name] = plain
            else:
                self._warn(f"{where}.{name} is {type(value).__name__}")
        return kept

    def _warn(self, what: str) -> None:
        if not self._warned:
            fix = "make it in __init__, of tensors, plain values or what has state_dict"
            self._say(f"warning: {what}: a resumed run begins with it anew; {fix}")
        self._warned = True

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. RuntimeError, KeyError or others if it does not fit.

        Weights and tensors keep their place, since the optimizer and others hold them.
        """
        if not state:
            return
        of_ranks = state["of_ranks"]
        of_rank = of_ranks[self._parallel.rank % len(of_ranks)]
        for name, own in of_rank["keepers"].items():
            self._start.keepers[name].load_state_dict(own)
        for name, own in state["modules"].items():
            module = self._start.modules[name]
            foreign = {key: x for key, x in module.state_dict().items() if not is_plain(x)}
            module.load_state_dict({**foreign, **own})
        for name, own in state["tensors"].items():
            self._start.tensors[name].copy_(own)
        now = OwnedObjects(self._objective, self._others)
        for where, values in of_rank["values"].items():
            for name, plain in values.items():
                present = now.values[where].get(name)
                old = present and present.value
                value = with_content(old, copy.deepcopy(plain), self._parallel.device)
                if present is None or value is not old:
                    put(now.owners[where], name, value)


def _changed(before: Mapping[Any, Value], now: Mapping[Any, Value]) -> list[Any]:
    """Return the names of the values that are new or changed."""
    return [
        name
        for name in now
        if name not in before or not is_same(before[name].plain, now[name].plain)
    ]


def _refused(what: str, refusal: str) -> ConfigError:
    fix = "choose parallel=none or parallel=ddp with cuda_graph=false"
    return ConfigError(392, GROUP, f"{what}, and {refusal}", fix)


@contextmanager
def evaluating(objective: object) -> Generator[None]:
    """Switch the objective's modules to evaluation, and afterwards back to what they were."""
    modules = OwnedObjects(objective).modules.values()
    modes = {module: module.training for root in modules for module in root.modules()}
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for module in modules:
            module.train()
        for module, mode in modes.items():
            module.training = mode
