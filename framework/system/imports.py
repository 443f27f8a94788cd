"""Imports of large modules that the start of a command need not wait for."""

import atexit
import ctypes
import gc
import os
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from threading import Thread
from typing import Any

from framework.system.portable import allowed_cores

atexit.register(gc.unfreeze)  # libraries that count their objects at the end see them go


def load(name: str) -> Any:
    """Import a large module without collecting garbage, which takes a fifth of the time.

    Later collections skip what was made meanwhile.
    """
    if name in sys.modules:
        return sys.modules[name]
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.freeze()
        gc.enable()


def begin_torch() -> None:
    """Load torch's largest library in a thread: 0.3 s without Python's lock."""
    spec = find_spec("torch")
    if spec is not None and spec.origin is not None and len(allowed_cores()) > 1:
        path = os.path.join(os.path.dirname(spec.origin), "lib", "libtorch_cpu.so")
        Thread(target=_open_library, args=[path], name="paceline-torch", daemon=True).start()


def _open_library(path: str) -> None:
    with suppress(OSError):  # it has another name on macOS and Windows
        ctypes.CDLL(path)
