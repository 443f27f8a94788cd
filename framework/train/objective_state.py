"""What an objective of the user's owns: weights that are trained with the model's, and state."""

import copy
import io
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from framework.contracts.parallel import Parallel
from framework.errors import ConfigError
from framework.train.parameter_groups import GROUP
from framework.train.plain_state import is_plain

NOT_PLAIN = (deque, set, np.ndarray, np.generic)  # values that change, and that no state holds
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


@runtime_checkable
class _Keeps(Protocol):
    """What can save and load its state: modules, and plain objects with these methods."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


@final
class ObjectiveState:
    """Weights and state of an objective, or of the losses inside ``objective=loss``.

    Weights are the parameters of its modules, and its tensors that need a gradient. State is what
    ``state_dict`` of the objective returns, or else of its attributes that have one, together with
    its attributes of plain values (numbers, texts, tensors and lists of them) that have changed.

    Ranks average the gradients, and take the buffers of modules from rank 0. Each rank keeps its
    own plain values.

    Args:
        objective: As it was built, before it saw a record.
        parallel: Tells what other ranks have. Modules move to its device if there are weights.
        say: Prints a warning of state that cannot be saved.
    """

    def __init__(
        self, objective: object, parallel: Parallel, say: Callable[[str], None] = print
    ) -> None:
        self._parallel = parallel
        self._say = say
        self._owners = _owners(objective)
        modules = {
            name: value
            for where, owner in self._owners.items()
            for name, value in {where: owner, **dict(_attributes(where, owner))}.items()
            if isinstance(value, nn.Module) and not _is_of_torch(value)
        }
        self._modules = list(modules.values())
        named = [
            (f"{name}.{own}", parameter)
            for name, module in modules.items()
            for own, parameter in module.named_parameters()
        ]
        named += [
            (name, value)
            for where, owner in self._owners.items()
            for name, value in _attributes(where, owner)
            if isinstance(value, Tensor) and value.is_leaf
        ]
        self.weights = {own: name for name, own in reversed(named) if own.requires_grad}
        for module in self._modules if self.weights else ():
            module.to(parallel.device)
        for weight in self.weights:
            weight.data = weight.data.to(parallel.device)
        self._start = {where: _values(owner) for where, owner in self._owners.items()}
        self._warned = False
        if parallel.world_size > 1:
            self._take_from_first([weight.data for weight in self.weights])
            self.share_buffers()

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
        """Raise ConfigError C392 if weights or state cannot be kept, for the reason ``refusal``."""
        owned = [
            *sorted(self.weights.values()),
            *(name for module in self._modules for name, _ in module.named_buffers()),
            *(name for name, keeper in self._keepers() if not isinstance(keeper, nn.Module)),
        ]
        if refusal and owned:
            what = f"owns {owned[0]}, and {refusal}"
            fix = "choose parallel=none or parallel=ddp with cuda_graph=false"
            raise ConfigError(392, "objective", what, fix)

    def average_gradients(self) -> None:
        """Give all ranks the mean of their gradients. A rank without one adds zeros."""
        world_size = self._parallel.world_size
        if world_size == 1 or not self.weights:
            return
        own = [
            torch.zeros_like(weight) if weight.grad is None else weight.grad
            for weight in self.weights
        ]
        dense = [gradient.to_dense() if gradient.is_sparse else gradient for gradient in own]
        for weight, total in zip(self.weights, self._sums(dense), strict=True):
            weight.grad = total / world_size

    def share_buffers(self) -> None:
        """Give the modules of all ranks the buffers of rank 0."""
        if self._parallel.world_size > 1:
            self._take_from_first([own for module in self._modules for own in module.buffers()])

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

    def _keepers(self) -> Iterator[tuple[str, _Keeps]]:
        """Yield what saves its own state: each owner, or else those of its attributes that do."""
        for where, owner in self._owners.items():
            inside = (
                {where: owner} if isinstance(owner, _Keeps) else dict(_attributes(where, owner))
            )
            for name, value in inside.items():
                if isinstance(value, _Keeps) and not _is_of_torch(value):
                    yield name, value

    def state_dict(self) -> dict[str, Any]:
        """Return the state: of modules once, and ``of_ranks`` a dict for each rank.

        {} if there is none. All ranks call this together.
        """
        if not self._owners:
            return {}
        keepers = dict(self._keepers())
        modules = {n: own.state_dict() for n, own in keepers.items() if isinstance(own, nn.Module)}
        own = {n: keepers[n].state_dict() for n in keepers if n not in modules}
        changed = {where: self._changed(where, own) for where, own in self._owners.items()}
        for name in [name for name, state in own.items() if not is_plain(state)]:
            self._warn(f"{name}.state_dict()")
            del own[name]
        of_rank = {"keepers": own, "values": {name: own for name, own in changed.items() if own}}
        of_ranks = _of_all_ranks(of_rank, self._parallel)
        if not modules and not any(part for rank in of_ranks for part in rank.values()):
            return {}
        return {"modules": modules, "of_ranks": of_ranks}

    def _changed(self, where: str, owner: object) -> dict[str, Any]:
        """Return the plain values that the owner has changed since it was built."""
        if isinstance(owner, _Keeps) and not isinstance(owner, nn.Module):
            return {}
        start, changed = self._start[where], _values(owner)
        for name in [
            name for name in start.keys() & changed if _is_same(start[name], changed[name])
        ]:
            del changed[name]
        for name in [name for name, value in changed.items() if not is_plain(value)]:
            self._warn(f"{where}.{name} is {type(changed.pop(name)).__name__}")
        return changed

    def _warn(self, what: str) -> None:
        if not self._warned:
            fix = "give it state_dict and load_state_dict of tensors and plain values"
            self._say(f"warning: {what}: a resumed run begins with it anew; {fix}")
        self._warned = True

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. RuntimeError, KeyError or others if it does not fit."""
        if not state:
            return
        of_ranks = state["of_ranks"]
        of_rank = of_ranks[self._parallel.rank % len(of_ranks)]
        keepers = dict(self._keepers())
        for name, own in {**state["modules"], **of_rank["keepers"]}.items():
            keepers[name].load_state_dict(own)
        for where, values in of_rank["values"].items():
            owner = self._owners[where]
            for name, value in values.items():
                present = getattr(owner, name, None)
                if isinstance(present, Tensor) and present.requires_grad:
                    present.copy_(value)
                elif isinstance(value, Tensor):
                    setattr(owner, name, value.to(self._parallel.device))
                else:
                    setattr(owner, name, value)


def copy_to_try(objective: Any) -> Any:
    """Return a copy that may see records before training; itself if it owns or copies nothing."""
    if not _owners(objective):
        return objective
    try:
        return copy.deepcopy(objective)
    except Exception:  # noqa: BLE001  # a user's object may hold a file or a lock
        return objective


def _owners(objective: object) -> dict[str, Any]:
    """Return the objects that are the user's: the objective, or the losses of ours."""
    if type(objective).__module__.partition(".")[0] != __name__.partition(".")[0]:
        return {GROUP: objective}
    losses = getattr(objective, "losses", None)
    if not isinstance(losses, Mapping):
        return {}
    return {f"{GROUP}.losses.{name}": loss for name, loss in losses.items()}


def _attributes(where: str, owner: object) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object by their dotted names, and what is in its containers."""
    for name, value in getattr(owner, "__dict__", {}).items():
        inside: Mapping[Any, Any] = {"": value}
        if isinstance(value, Mapping):
            inside = value
        elif isinstance(value, list | tuple):
            inside = dict(enumerate(value))
        for key, part in inside.items():
            yield f"{where}.{name}" + (f".{key}" if key != "" else ""), part


def _values(owner: object) -> dict[str, Any]:
    """Return copies of the attributes that are values, without those that every module has."""
    own = getattr(owner, "__dict__", {})
    names = own.keys() - (_OF_EVERY_MODULE if isinstance(owner, nn.Module) else ())
    with torch.no_grad():
        return {
            name: copy.deepcopy(own[name])
            for name in sorted(names)
            if is_plain(own[name]) or isinstance(own[name], NOT_PLAIN)
        }


def _is_same(old: Any, new: Any) -> bool:
    if isinstance(old, Tensor) and isinstance(new, Tensor):
        return old.shape == new.shape and bool(torch.equal(old.cpu(), new.cpu()))
    try:
        return bool(np.all(old == new))
    except (RuntimeError, ValueError):  # tensors inside a list
        return False


def _is_of_torch(value: object) -> bool:
    """Return whether this is a loss of torch's, whose buffers never change."""
    return type(value).__module__ == nn.modules.loss.__name__


def _of_all_ranks(own: dict[str, Any], parallel: Parallel) -> list[dict[str, Any]]:
    """Return what each rank has. All ranks call this together."""
    if parallel.world_size == 1:
        return [own]
    file = io.BytesIO()
    torch.save(own, file)
    gathered = parallel.gather(torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8))
    files = [io.BytesIO(rank.numpy().tobytes()) for rank in gathered]
    return [torch.load(rank, map_location="cpu", weights_only=True) for rank in files]
