"""What an objective of the user's owns: weights that are trained with the model's, and state."""

import copy
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import MethodType
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from framework.contracts.parallel import Parallel
from framework.errors import ConfigError, say
from framework.train.checkpoint import is_plain, of_all_ranks
from framework.train.parameter_groups import GROUP

OURS = __name__.partition(".")[0]
# Packages whose objects are not looked into: their attributes are not the user's.
LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy", OURS} - {"types", "argparse"}
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


@final
class ObjectiveState:
    """Weights and state of an objective, or of the losses inside ``objective=loss``.

    State is that of its modules and of what else has ``state_dict``, and the plain values among the
    attributes of other objects that have changed. Ranks average the gradients, and take the buffers
    of modules from rank 0. Each rank keeps its own plain values. If there are weights, modules move
    to the device of ``parallel``. ``say`` prints a warning of state that cannot be saved.
    """

    def __init__(
        self, objective: object, parallel: Parallel, say: Callable[[str], None] = say
    ) -> None:
        self._objective = objective
        self._parallel = parallel
        self._say = say
        self._warned = False
        self._start = OwnedObjects(objective)
        self._others: frozenset[int] = frozenset()  # the ids of the model's modules and weights
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
        names = ", ".join(sorted(self.weights.values()))[:200]
        return f"{count:,} weights of the objective are trained, too: {names}"

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

    def check_called(self, model: nn.Module) -> "OwnedObjects":
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

    def check_unchanged(self, before: "OwnedObjects", refusal: str) -> None:
        """Check that nothing has changed since the first call, which made ``before``.

        What only the first call sets is no state, such as the number of classes. ConfigError C392.
        """
        now = OwnedObjects(self._objective, self._others)
        for name in _changed(before.values, now.values):
            raise _refused(f"changes {name}", refusal)

    def _made(self, now: "OwnedObjects") -> list[str]:
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
        if self._parallel.world_size == 1:
            return
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
        values = {name: now.values[name] for name in _changed(self._start.values, now.values)}
        of_ranks = of_all_ranks({"keepers": keepers, "values": values}, self._parallel)
        tensors = {name: own.detach() for name, own in self._start.tensors.items()}
        if not modules and not tensors and not any(any(rank.values()) for rank in of_ranks):
            return {}
        return {"modules": modules, "tensors": tensors, "of_ranks": of_ranks}

    def _is_kept(self, name: str, state: Any) -> bool:
        if not is_plain(state):
            self._warn(f"{name}.state_dict() has more than tensors and plain values")
        return is_plain(state)

    def _warn(self, what: str) -> None:
        if not self._warned:
            fix = "make it in __init__, and keep plain values there"
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
        for name, value in of_rank["values"].items():
            where, _, attribute = name.rpartition(".")
            setattr(now.owners[where], attribute, _copied(value, self._parallel.device))


def _copied(value: Any, device: torch.device | None = None) -> Any:
    """Return a copy of a plain value with its tensors on the device. TypeError for weights."""
    if isinstance(value, Tensor):
        if value.is_leaf and value.requires_grad:
            raise TypeError("a weight")
        return value.detach().clone().to(device)
    if isinstance(value, list | tuple):
        return type(value)(_copied(part, device) for part in value)
    if isinstance(value, dict):
        return {name: _copied(part, device) for name, part in value.items()}
    return value


def _changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the names of the values that are new or changed."""
    return [name for name in now if name not in before or not _is_same(before[name], now[name])]


def _is_same(old: Any, new: Any) -> bool:
    """Return whether two plain values are the same, also if they are NaN."""
    if type(old) is not type(new):
        return False
    if isinstance(old, Tensor):
        is_alike = (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)
        return is_alike and torch.equal(old, new)
    if isinstance(old, dict):
        return list(old) == list(new) and all(_is_same(old[name], new[name]) for name in old)
    if isinstance(old, list | tuple):
        return len(old) == len(new) and all(map(_is_same, old, new))
    return old == new or (old != old and new != new)  # noqa: PLR0124


def _refused(what: str, refusal: str) -> ConfigError:
    fix = "choose parallel=none or parallel=ddp with cuda_graph=false"
    return ConfigError(392, GROUP, f"{what}, and {refusal}", fix)


@runtime_checkable
class Keeps(Protocol):
    """What can save and load its state: modules, and plain objects with these methods."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


@final
class OwnedObjects:
    """What an objective of the user's holds, and the losses inside one of ours, by dotted names.

    Attributes of objects, containers, bound methods and ``functools.partial`` are looked into.
    ``others`` are the ids of objects that are not the objective's, such as the model's modules.

    Attributes:
        modules: The outermost modules, except torch's losses.
        weights: The names of all tensors that need a gradient, and that no optimizer among these
            objects has.
        tensors: Those of ``weights`` that are of no module, by name.
        keepers: Other objects with ``state_dict`` and ``load_state_dict``.
        owners: The objects whose attributes were looked into.
        values: Copies of the plain values among the attributes that no keeper saves.
    """

    def __init__(self, objective: object, others: frozenset[int] = frozenset()) -> None:
        self.modules: dict[str, nn.Module] = {}
        self.keepers: dict[str, Keeps] = {}
        self.owners: dict[str, Any] = {}
        self.values: dict[str, Any] = {}
        self.has_optimizer = False
        self._inside: set[int] = set()  # the ids of modules inside of others
        self._trained = set(others)  # the ids of tensors that are trained elsewhere
        self._of_modules: dict[Tensor, str] = {}
        alone: dict[Tensor, str] = {}
        seen = set(others)
        todo: list[tuple[str, Any, bool]] = [(GROUP, objective, False)]
        while todo:
            where, owner, is_saved = todo.pop()
            if isinstance(owner, Tensor) and owner.is_leaf and owner.requires_grad:
                alone.setdefault(owner, where)
            if id(owner) in seen or isinstance(owner, type | Tensor):
                continue
            if type(owner).__module__ == nn.modules.loss.__name__:  # whose buffers never change
                continue
            seen.add(id(owner))
            is_saved |= self._add(where, owner)
            parts = _parts(owner)
            if _has_attributes(owner):
                self.owners[where] = owner
                for name, part in parts.items():
                    plain = part.item() if isinstance(part, np.generic) else part
                    if not is_saved and is_plain(plain):
                        with suppress(TypeError):
                            self.values[f"{where}.{name}"] = _copied(plain)
            todo += [(f"{where}.{name}", part, is_saved) for name, part in reversed(parts.items())]
        self.weights = {
            own: name
            for own, name in {**alone, **self._of_modules}.items()
            if own.requires_grad and id(own) not in self._trained
        }
        self.tensors = {
            name: own
            for own, name in alone.items()
            if own in self.weights and own not in self._of_modules
        }

    def _add(self, where: str, owner: Any) -> bool:
        """Note a module or a keeper. Return whether it saves the values inside it, too."""
        if isinstance(owner, nn.Module):
            if id(owner) not in self._inside:
                self.modules[where] = owner
                self._inside |= {id(module) for module in owner.modules()}
            for name, weight in owner.named_parameters(recurse=False):
                self._of_modules.setdefault(weight, f"{where}.{name}")
            return False
        if not isinstance(owner, Keeps) or type(owner).__module__.startswith(f"{OURS}."):
            return False
        self.keepers[where] = owner
        if isinstance(owner, torch.optim.Optimizer):
            self.has_optimizer = True
            groups = owner.param_groups
            self._trained |= {id(own) for group in groups for own in group["params"]}
        return True


def _has_attributes(owner: object) -> bool:
    """Return whether an object's class is the user's, so that its attributes are looked into."""
    is_users = type(owner).__module__.partition(".")[0] not in LIBRARIES
    return is_users and hasattr(owner, "__dict__")


def _parts(owner: Any) -> dict[Any, Any]:
    """Return what an object of the user's holds, by name."""
    if isinstance(owner, nn.Module):
        own = vars(owner) if _has_attributes(owner) else {}
        extra = {name: part for name, part in own.items() if name not in _OF_EVERY_MODULE}
        return {**extra, **dict(owner.named_children())}
    if isinstance(owner, Mapping):
        return dict(owner)
    if isinstance(owner, list | tuple | deque | set):
        return dict(enumerate(owner))
    if isinstance(owner, MethodType):
        return {"self": owner.__self__}
    if isinstance(owner, partial):
        return {"func": owner.func, "args": owner.args, "keywords": owner.keywords}
    if _has_attributes(owner):
        return dict(vars(owner))
    if type(owner).__module__.startswith(f"{OURS}.") and hasattr(owner, "losses"):
        return {"losses": owner.losses}
    return {}


@contextmanager
def untouched(objective: object) -> Generator[None]:
    """Undo afterwards what calls of the objective have changed in it, and drop its gradients."""
    owned = OwnedObjects(objective)
    tensors = [*owned.tensors.values()]
    for module in owned.modules.values():
        tensors += [*module.parameters(), *module.buffers()]
    before = [tensor.detach().clone() for tensor in tensors]
    states = [copy.deepcopy(keeper.state_dict()) for keeper in owned.keepers.values()]
    attributes = [dict(vars(owner)) for owner in owned.owners.values()]
    try:
        yield
    finally:
        for owner, own in zip(owned.owners.values(), attributes, strict=True):
            vars(owner).clear()
            vars(owner).update(own)
        for name, value in owned.values.items():
            where, _, attribute = name.rpartition(".")
            setattr(owned.owners[where], attribute, value)
        for keeper, state in zip(owned.keepers.values(), states, strict=True):
            keeper.load_state_dict(state)
        with torch.no_grad():
            for tensor, own in zip(tensors, before, strict=True):
                tensor.copy_(own)
                tensor.grad = None


@contextmanager
def evaluating(objective: object) -> Generator[None]:
    """Switch the objective's modules to evaluation, and afterwards back to what they were."""
    roots = OwnedObjects(objective).modules.values()
    modes = {module: module.training for root in roots for module in root.modules()}
    for root in roots:
        root.eval()
    try:
        yield
    finally:
        for root in roots:
            root.train()
        for module, mode in modes.items():
            module.training = mode
