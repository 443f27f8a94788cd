"""What the objects of a user's objective hold: modules, weights, keepers of state, and values."""

import copy
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from framework.train.checkpoint import is_plain
from framework.train.parameter_groups import GROUP

CPU = torch.device("cpu")
OURS = __name__.partition(".")[0]
# Packages whose objects are not looked into: their attributes are not the user's.
LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy", OURS} - {"types", "argparse"}
# Values whose content is restored in place.
FILLED = (
    Tensor,
    np.ndarray,
    torch.Generator,
    random.Random,
    np.random.Generator,
    dict,
    list,
    deque,
)
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


@runtime_checkable
class Keeps(Protocol):
    """What can save and load its state: modules, and plain objects with these methods."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


class Value(NamedTuple):
    """A value of the user's, and a copy of its content in the types that a saved state holds."""

    value: Any
    plain: Any


@final
class OwnedObjects:
    """What an objective of the user's holds, and the losses inside one of ours, by dotted names.

    Objects, containers, bound methods, ``functools.partial`` and the variables of functions are
    looked into.

    ``others`` are the ids of objects that are not the objective's, such as the model's modules.

    Attributes:
        modules: The outermost modules, except torch's losses.
        weights: The names of all tensors to train: those that need a gradient, and that no
            optimizer among these objects has.
        tensors: Those of ``weights`` that are of no module, by name.
        keepers: Other objects with ``state_dict`` and ``load_state_dict``.
        owners: The objects that were looked into.
        values: Numbers, texts, tensors, arrays, generators, and containers of them, of each owner.
        saved_by_keepers: The names of owners that are keepers or lie inside one.
        has_optimizer: Whether there is an optimizer among these objects.
    """

    def __init__(self, objective: object, others: frozenset[int] = frozenset()) -> None:
        self.modules: dict[str, nn.Module] = {}
        self.keepers: dict[str, Keeps] = {}
        self.owners: dict[str, Any] = {}
        self.values: dict[str, dict[Any, Value]] = {}
        self.saved_by_keepers: set[str] = set()
        self.has_optimizer = False
        self._inside: set[int] = set()  # the ids of modules inside of others
        self._trained = set(others)  # the ids of tensors that are trained elsewhere
        self._of_modules: dict[Tensor, str] = {}
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
            is_saved |= self._add(where, owner)
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


def _is_users(owner: object) -> bool:
    """Return whether an object's class is the user's, so that its attributes are looked into."""
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
    """Return the names of the ``__slots__`` that an object has filled."""
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


def _containers(owner: Any) -> list[Any]:
    """Return the dicts and lists that hold the parts of an owner."""
    if isinstance(owner, nn.Module):
        own = vars(owner)
        return [own, own["_parameters"], own["_buffers"], own["_modules"]]
    if isinstance(owner, dict | list | deque | set):
        return [owner]
    return [vars(owner)] if hasattr(owner, "__dict__") and _is_users(owner) else []


def is_fixed(owner: Any) -> bool:
    """Return whether an owner's parts cannot be replaced: of a tuple, or a frozen dataclass."""
    frozen = getattr(getattr(type(owner), "__dataclass_params__", None), "frozen", False)
    return frozen or isinstance(owner, tuple | set)


def put(owner: Any, name: Any, value: Any) -> None:
    if isinstance(owner, dict | list):
        owner[name] = value
    elif isinstance(owner, FunctionType):
        _cells(owner)[name].cell_contents = value
    else:
        setattr(owner, name, value)


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
        case Tensor(), Tensor() if present.is_leaf and _is_alike(present, plain):
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


def is_same(old: Any, new: Any) -> bool:
    """Return whether two contents are the same, also if they are NaN."""
    if isinstance(old, Tensor) or isinstance(new, Tensor):
        return _is_alike(old, new) and bool(torch.equal(old.cpu(), new.cpu()))
    if type(old) is not type(new):
        return False
    if isinstance(old, dict):
        return list(old) == list(new) and all(is_same(old[name], new[name]) for name in old)
    if isinstance(old, list | tuple):
        return len(old) == len(new) and all(map(is_same, old, new))
    return old == new or (old != old and new != new)  # noqa: PLR0124


def _is_alike(old: Any, new: Any) -> bool:
    both = isinstance(old, Tensor) and isinstance(new, Tensor)
    return both and (old.shape, old.dtype) == (new.shape, new.dtype)


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
        for container in _containers(owner):
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
