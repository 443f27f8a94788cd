"""The layers of a model: its blocks in their order, and which modules normalize."""

from typing import final

from torch import nn

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
STATISTICS = "running_mean"  # the buffer of a batch norm that keeps statistics


def is_normalization(module: nn.Module) -> bool:
    """Return whether a module normalizes.

    torch's classes and those of other libraries have ``Norm`` in their names. Each of their own
    parameters is a scale or a shift per channel, which has at most one dimension.
    """
    own = list(module.parameters(recurse=False))
    return "Norm" in type(module).__name__ and all(weight.dim() <= 1 for weight in own)


def keeps_statistics(module: nn.Module) -> bool:
    """Return whether a module updates running statistics in training, as batch norm does."""
    return any(name == STATISTICS for name, _ in module.named_buffers(recurse=False))


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
        last = max(0, len(self.names) - 1)
        self.number_of = {name: min(number, last) for name, number in self.number_of.items()}

    @property
    def depth(self) -> int:
        """The number of blocks."""
        return max(1, len(self.names))

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
        return any(_has_parts(child) for child in module.children())
    return any(
        _has_parts(child) and not isinstance(child, CONTAINERS)
        for inner in module.modules()
        if isinstance(inner, CONTAINERS)
        for child in inner.children()
    )


def _has_parts(module: nn.Module) -> bool:
    return next(module.children(), None) is not None
