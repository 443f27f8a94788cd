"""The Python API of Paceline: the objects of ``framework`` under the project's own name.

``framework/__init__.pyi`` lists them. Each is imported when it is first used, so that ``import
paceline`` costs nothing:

    import paceline

    store = paceline.open_store("train.h5")
    print(store.manifest.num_records)
"""

from typing import Any

import framework

__version__ = framework.__version__


def __getattr__(name: str) -> Any:
    if name not in __dir__():
        raise AttributeError(f"module 'paceline' has no attribute '{name}'")
    value = getattr(framework, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    names = framework._homes()  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue]
    return sorted({"__version__", *names})
