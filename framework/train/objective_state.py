"""What an objective of the user's owns: weights that are trained with the model's, and state."""

import copy
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from framework.contracts.parallel import Parallel
from framework.errors import ConfigError, say
from framework.order.sampler import KeepsState
from framework.train.checkpoint import is_plain, of_all_ranks
from framework.train.exchange import average_gradients, take_from_first
from framework.train.parameter_groups import GROUP

CPU = torch.device("cpu")
OURS = __name__.partition(".")[0]
# Packages whose objects are not looked into: their attributes are not the user's.
LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy", OURS} - {"types", "argparse"}
# Values whose content is restored in place.
GENERATORS = (torch.Generator, random.Random, np.random.Generator)
FILLED = (*GENERATORS, Tensor, np.ndarray, dict, list, deque)
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


@final
class ObjectiveState:
    """Weights and state of an objective, as it was built, or of losses inside ``objective=loss``.

    State is that of its modules and of what else has ``state_dict``, and all other values that have
    changed. Ranks average the gradients, and take the buffers of modules from rank 0. Each rank
    keeps its own plain values. If there are weights, modules move to the device.
    """

    def __init__(
        self, objective: object, parallel: Parallel, say: Callable[[str], None] = say
    ) -> None:
        self._objective = objective
        self._parallel = parallel
        self._say = say
        self._start = OwnedObjects(objective)
        self.is_there = bool(self._start.owners)
        self._others: frozenset[int] = frozenset()  # the ids of the model's modules and weights
        self._warned = False
        self.modules = self._start.modules  # the outermost ones, by name
        self._known = {id(part) for module in self.modules.values() for part in module.modules()}
        self.weights = self._start.weights  # the names of all tensors to train
        if self.weights:
            for module in self.modules.values():
                module.to(parallel.device)
        for weight, name in self.weights.items():
            if is_lazy(weight):
                what = f"owns {name}, whose size its first call would decide"
                fix = "give the size, as with torch.nn.Linear instead of LazyLinear"
                raise ConfigError(392, GROUP, what, fix)
            weight.data = weight.data.to(parallel.device)
        if parallel.world_size > 1:
            take_from_first([weight.data for weight in self.weights], self._parallel)
            self.share_buffers()

    @property
    def note(self) -> str:
        """A note on the weights that are trained beside the model."""
        count = sum(weight.numel() for weight in self.weights)
        names = ", ".join(sorted(self.weights.values())[:4])
        more = ", ..." if len(self.weights) > 4 else ""
        return f"{count:,} weights of the objective are trained, too: {names}{more}"

    def check(self, refusal: str | None) -> None:
        """Check what is to be trained and kept; ``refusal`` says why nothing can be. C392."""
        buffers = (name for own in self.modules.values() for name, _ in own.named_buffers())
        owned = [*sorted(self.weights.values()), *buffers, *self._start.keepers]
        if refusal and owned:
            raise _refused(f"owns {owned[0]}", refusal)
        if self._start.has_optimizer and self._parallel.world_size > 1:
            what = "has an optimizer of its own, whose gradients the ranks do not exchange"
            raise ConfigError(392, GROUP, what, "choose parallel=none")

    def check_called(self, model: nn.Module) -> "OwnedObjects":
        """Return what there is after a call with ``model``. C392 if it made weights or state."""
        self._others |= {id(part) for part in (*model.modules(), *model.parameters())}
        now = OwnedObjects(self._objective, self._others)
        if made := self._made(now):
            what = f"makes {made[0]} in a call, so that it is not trained, or lost on a resume"
            raise ConfigError(392, GROUP, what, "make it in __init__; a call may fill it")
        return now

    def check_unchanged(self, before: "OwnedObjects", refusal: str) -> None:
        """Check that nothing has changed since ``before``, after the first call. C392."""
        for where, values in OwnedObjects(self._objective, self._others).values.items():
            for name in changed(before.values.get(where, {}), values):
                raise _refused(f"changes {where}.{name}", refusal)

    def _made(self, now: "OwnedObjects") -> list[str]:
        made = [name for own, name in now.weights.items() if own not in self.weights]
        made += [name for name in now.keepers if name not in self._start.keepers]
        for where, root in now.modules.items():
            for name, module in root.named_modules(prefix=where):
                if id(module) not in self._known and [*module.parameters(), *module.buffers()]:
                    made.append(name)
        return made

    def average_gradients(self) -> None:
        average_gradients(list(self.weights), self._parallel)

    def share_buffers(self) -> None:
        """Give the modules of all ranks the buffers of rank 0."""
        own = [buffer for module in self.modules.values() for buffer in module.buffers()]
        take_from_first(own, self._parallel)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, {} if there is none. All ranks call this together."""
        now = OwnedObjects(self._objective, self._others)
        for name in self._made(now):
            self._warn(f"{name} is made in training")
        modules: dict[str, dict[str, Any]] = {}
        for name, module in self.modules.items():
            own_state = module.state_dict()
            modules[name] = {key: own for key, own in own_state.items() if self._is_kept(name, own)}
        keepers = {name: keeper.state_dict() for name, keeper in self._start.keepers.items()}
        keepers = {name: own for name, own in keepers.items() if self._is_kept(name, own)}
        values: dict[str, dict[Any, Any]] = {}
        for where, owner in now.owners.items():
            if where in now.saved_by_keepers:
                continue
            start = self._start.values.get(where)
            for name in changed(start or {}, now.values[where]):
                value, plain = now.values[where][name]
                if start is not None and name in start and type(start[name].value) is type(value):
                    can_put = not is_fixed(owner) or isinstance(value, FILLED)
                else:
                    can_put = start is not None and is_plain(value)
                    can_put &= not is_fixed(owner) and not isinstance(owner, list)
                if can_put:
                    values.setdefault(where, {})[name] = plain
                else:
                    self._warn(f"{where}.{name} is {type(value).__name__}")
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

    def _warn(self, what: str) -> None:
        if not self._warned:
            fix = "make it in __init__, of tensors, plain values or what has state_dict"
            self._say(f"warning: {what}: a resumed run begins with it anew; {fix}")
        self._warned = True

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, in place. RuntimeError, KeyError or others if it does not fit."""
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
                owner = now.owners[where]
                if present is not None and value is old:  # filled in place
                    continue
                if isinstance(owner, dict | list):
                    owner[name] = value
                elif isinstance(owner, FunctionType):
                    _cells(owner)[name].cell_contents = value
                else:
                    setattr(owner, name, value)


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


@contextmanager
def untouched(objective: object) -> Generator[None]:
    """Undo afterwards what calls of the objective have changed in it, and drop its gradients."""
    owned = OwnedObjects(objective)
    undo: list[Callable[[], Any]] = []
    for owner in owned.owners.values():
        cells = _cells(owner).values()
        undo += [partial(setattr, cell, "cell_contents", cell.cell_contents) for cell in cells]
        if not is_fixed(owner) and _is_users(owner):
            undo += [partial(setattr, owner, own, getattr(owner, own)) for own in _slots(owner)]
        containers: list[Any] = []  # which hold the parts of the owner
        if isinstance(owner, nn.Module):
            own = vars(owner)
            containers = [own, own["_parameters"], own["_buffers"], own["_modules"]]
        elif isinstance(owner, dict | list | deque | set):
            containers = [owner]
        elif hasattr(owner, "__dict__") and _is_users(owner):
            containers = [vars(owner)]
        for container in containers:
            undo.append(partial(with_content, container, copy.copy(container), CPU))
    for values in owned.values.values():
        undo += [partial(with_content, present, plain, CPU) for present, plain in values.values()]
    tensors = [*owned.tensors.values()]
    for module in owned.modules.values():
        tensors += [*module.parameters(), *module.buffers()]
    for tensor in tensors:
        undo.append(partial(tensor.copy_, tensor.detach().clone()))
        undo.append(partial(setattr, tensor, "grad", None))
    for where, keeper in owned.keepers.items():
        if where not in owned.owners:
            undo.append(partial(keeper.load_state_dict, copy.deepcopy(keeper.state_dict())))
    try:
        yield
    finally:
        with torch.no_grad():
            for action in undo:
                action()


class Value(NamedTuple):
    """A value of the user's, and a copy of its content in the types that a saved state holds."""

    value: Any
    plain: Any


@final
class OwnedObjects:
    """What an objective of the user's holds, and the losses inside one of ours, by dotted names.

    Objects, containers, bound methods, ``functools.partial`` and the variables of functions are
    looked into. ``others`` are the ids of objects that are not the objective's, such as the model's
    modules.
    """

    def __init__(self, objective: object, others: frozenset[int] = frozenset()) -> None:
        self.modules: dict[str, nn.Module] = {}  # the outermost ones, except torch's losses
        self.keepers: dict[str, KeepsState] = {}  # except modules
        self.owners: dict[str, Any] = {}  # what was looked into
        # Of each owner: numbers, texts, tensors, arrays, generators, and containers of them.
        self.values: dict[str, dict[Any, Value]] = {}
        self.saved_by_keepers: set[str] = set()  # the owners that are keepers or lie inside one
        self.has_optimizer = False
        inside: set[int] = set()  # the ids of modules inside of others
        trained = set(others)  # the ids of tensors that are trained elsewhere
        of_modules: dict[Tensor, str] = {}
        alone: dict[Tensor, str] = {}
        seen = set(others)
        todo: list[tuple[str, Any, bool]] = [(GROUP, objective, False)]
        while todo:
            where, owner, is_saved = todo.pop()
            if id(owner) in seen or isinstance(owner, type):
                continue
            if type(owner).__module__ == nn.modules.loss.__name__:  # whose buffers never change
                continue
            seen.add(id(owner))
            if isinstance(owner, nn.Module):
                if id(owner) not in inside:
                    self.modules[where] = owner
                    inside |= {id(module) for module in owner.modules()}
                for name, weight in owner.named_parameters(recurse=False):
                    of_modules.setdefault(weight, f"{where}.{name}")
            elif isinstance(owner, KeepsState) and not type(owner).__module__.startswith(
                f"{OURS}."
            ):
                self.keepers[where] = owner
                is_saved = True
                if isinstance(owner, torch.optim.Optimizer):
                    self.has_optimizer = True
                    trained |= {id(own) for group in owner.param_groups for own in group["params"]}
            parts = _parts(owner)
            if parts is None:
                continue
            self.owners[where] = owner
            self.values[where] = {}
            if is_saved:
                self.saved_by_keepers.add(where)
            deeper: list[tuple[str, Any, bool]] = []
            for name, part in parts.items():
                if isinstance(part, Tensor) and part.is_leaf and part.requires_grad:
                    alone.setdefault(part, f"{where}.{name}")
                    continue
                try:
                    self.values[where][name] = Value(part, _plain(part))
                except TypeError:
                    deeper.append((f"{where}.{name}", part, is_saved))
            todo += reversed(deeper)
        # The names of all tensors to train, and those among them that are of no module.
        every = {own: name for own, name in {**alone, **of_modules}.items() if own.requires_grad}
        self.weights = {own: name for own, name in every.items() if id(own) not in trained}
        tensors = [own for own in alone if own in self.weights and own not in of_modules]
        self.tensors = {alone[own]: own for own in tensors}


def _is_users(owner: object) -> bool:
    return type(owner).__module__.partition(".")[0] not in LIBRARIES


def _parts(owner: Any) -> dict[Any, Any] | None:
    """Return what an object of the user's holds, by name; None if it is not looked into."""
    if isinstance(owner, nn.Module):
        own = vars(owner) if _is_users(owner) else {}
        extra = {name: part for name, part in own.items() if name not in _OF_EVERY_MODULE}
        return {**extra, **dict(owner.named_children())}
    if isinstance(owner, Mapping):
        return dict(owner)
    if isinstance(owner, list | tuple | deque | set):
        return dict(enumerate(owner))
    parts: dict[str, Any] = {}
    if isinstance(owner, MethodType):
        parts = {"self": owner.__self__}
    elif isinstance(owner, partial):
        parts = {"func": owner.func, "args": owner.args, "keywords": owner.keywords}
    elif isinstance(owner, FunctionType):
        parts = {name: cell.cell_contents for name, cell in _cells(owner).items()}
    elif _is_users(owner) and (hasattr(owner, "__dict__") or _slots(owner)):
        slots = {name: getattr(owner, name) for name in _slots(owner)}
        return {**slots, **getattr(owner, "__dict__", {})}
    elif "losses" in getattr(owner, "__dict__", {}):  # of our own ``objective=loss``
        parts = {"losses": owner.losses}
    return parts or None


def _slots(owner: Any) -> list[str]:
    named = [vars(kind).get("__slots__", ()) for kind in type(owner).__mro__]
    names = [name for own in named for name in ((own,) if isinstance(own, str) else own)]
    return [name for name in names if not name.startswith("__") and hasattr(owner, name)]


def _cells(function: Any) -> dict[str, CellType]:
    """Return the variables that a function has of the one around it, without unset ones."""
    cells: dict[str, CellType] = {}
    if not isinstance(function, FunctionType):
        return cells
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):
            cell.cell_contents  # noqa: B018  # raises if it is unset
            cells[name] = cell
    return cells


def is_fixed(owner: Any) -> bool:
    """Return whether an owner's parts cannot be replaced: of a tuple, set or frozen dataclass."""
    frozen = getattr(getattr(type(owner), "__dataclass_params__", None), "frozen", False)
    return frozen or isinstance(owner, tuple | set)


def _plain(value: Any) -> Any:
    """Return a copy of the content of a value. TypeError for what is no value."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return _copied(value.bit_generator.state)
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, deque | set):
        return _copied(list(value))
    return _copied(dict(value) if isinstance(value, dict) else value)


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.is_leaf and value.requires_grad:
            raise TypeError("a weight")
        return value.detach().clone()
    if isinstance(value, np.generic):
        return _copied(value.item())
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    if type(value) in (dict, OrderedDict) and all(map(is_plain, value)):
        return dict(zip(value, map(_copied, value.values()), strict=True))
    if not is_plain(value):
        raise TypeError(type(value).__name__)
    return value


def with_content(present: Any, plain: Any, device: torch.device) -> Any:
    """Return ``present`` with the content ``plain``, changed in place if its type allows that."""
    match present, plain:
        case torch.Generator(), Tensor():
            present.set_state(plain.cpu())
        case random.Random(), tuple():
            present.setstate(plain)
        case np.random.Generator(), dict():
            present.bit_generator.state = plain
        case np.ndarray(), Tensor() if present.shape == plain.shape:
            present[...] = plain.numpy()
        case Tensor(), Tensor() if (
            present.is_leaf and present.shape == plain.shape and present.dtype == plain.dtype
        ):
            present.copy_(plain)
        case (dict(), dict()) | (set(), set() | list()):
            present.clear()
            present.update(plain)
        case ((list() | deque()), (list() | deque())):
            present.clear()
            present.extend(plain)
        case np.ndarray(), Tensor():
            return plain.numpy()
        case _, Tensor():
            return plain.to(device)
        case np.generic(), bool() | int() | float() | complex():
            return present.dtype.type(plain)
        case _:
            return plain
    return present


def changed(before: Mapping[Any, Value], now: Mapping[Any, Value]) -> list[Any]:
    """Return the names of the values that are new or have another content."""
    old = {name: before[name].plain for name in now if name in before}
    return [name for name in now if name not in old or not is_same(old[name], now[name].plain)]


def is_same(old: Any, new: Any) -> bool:
    """Return whether two contents are the same, also if they are NaN."""
    if isinstance(old, Tensor) and isinstance(new, Tensor):
        return old.dtype == new.dtype and torch.equal(old.cpu(), new.cpu())
    if type(old) is not type(new):
        return False
    if isinstance(old, dict):
        return list(old) == list(new) and all(is_same(old[name], new[name]) for name in old)
    if isinstance(old, list | tuple):
        return len(old) == len(new) and all(map(is_same, old, new))
    return bool(old == new or (old != old and new != new))  # noqa: PLR0124
