"""Do something when a module has been imported.

A script may set environment variables that torch reads while it is imported. So nothing may import
torch before the script does.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import final


def when_imported(name: str, action: Callable[[], object]) -> None:
    """Call ``action`` once, when the module ``name`` is imported, or now if it already is."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Finder(name, action))


@final
class _Finder(MetaPathFinder):
    def __init__(self, name: str, action: Callable[[], object]) -> None:
        self.name = name
        self.action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.action)
        return spec


@final
class _Loader(Loader):
    """Loads a module with its own loader, and then calls ``action``."""

    def __init__(self, loader: Loader, action: Callable[[], object]) -> None:
        self.loader = loader
        self.action = action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.action()
