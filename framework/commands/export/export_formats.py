"""Write a model in the formats of PyTorch and of safetensors, and read it back to compare."""

import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
import torch._inductor.config
from torch import Tensor

from framework.commands.export.exportable import Exportable, ModelOnly
from framework.config.saved_run import SavedRun
from framework.errors import ConfigError, ResourceError, words_of
from framework.system.extras import needed

Runner = Callable[[Sequence[Tensor]], Sequence[Tensor]]


class ExportFormat(Protocol):
    """A file format."""

    def check(self) -> None:
        """Raise ResourceError if a package or a compiler is missing."""
        ...

    def write(self, run: SavedRun, exportable: Exportable, path: Path) -> None: ...

    def read(self, run: SavedRun, exportable: Exportable, path: Path) -> Runner:
        """Return a function that computes what the file holds."""
        ...


def refused(to: str, error: Exception) -> ConfigError:
    """Return the error of a model that a format cannot hold."""
    what = f"the model cannot be exported ({words_of(error, 200) or type(error).__name__})"
    fix = "give batch_size=N if it takes only one size, or choose another format"
    return ConfigError(383, f"to = {to}", what, fix)


def traced(to: str, exportable: Exportable) -> torch.export.ExportedProgram:
    """Return the graph of the model. ConfigError C383 if it cannot be traced."""
    try:
        with torch.no_grad():
            return torch.export.export(
                exportable.module, exportable.inputs, dynamic_shapes=exportable.dynamic_shapes
            )
    except Exception as error:
        raise refused(to, error) from error


class SafetensorsFormat:
    """Weights in safetensors. The model is the run's own."""

    def check(self) -> None:
        needed("safetensors", "safetensors")

    def write(self, run: SavedRun, exportable: Exportable, path: Path) -> None:
        from safetensors.torch import save_model  # noqa: PLC0415

        save_model(run.model, str(path), {"format": "pt"})

    def read(self, run: SavedRun, exportable: Exportable, path: Path) -> Runner:
        from safetensors.torch import load_model  # noqa: PLC0415

        model = run.build("model").to(run.device)
        load_model(model, str(path), device=str(run.device))
        module = ModelOnly(model).eval()
        return lambda inputs: module(*inputs)


class TorchExportFormat:
    """A graph for ``torch.export.load``."""

    def check(self) -> None:
        pass

    def write(self, run: SavedRun, exportable: Exportable, path: Path) -> None:
        torch.export.save(traced("torch_export", exportable), path)

    def read(self, run: SavedRun, exportable: Exportable, path: Path) -> Runner:
        module = torch.export.load(path).module()
        return lambda inputs: module(*inputs)


class AotiFormat:
    """A compiled graph for C++, and for ``torch._inductor.aoti_load_package``."""

    def check(self) -> None:
        candidates = filter(None, (os.environ.get("CXX"), "g++", "clang++"))
        if not any(map(shutil.which, candidates)):
            what = "no compiler here (g++ or clang++)"
            fix = "install g++, or choose to=torch_export or onnx"
            raise ResourceError(193, "to = aoti", what, fix)

    def write(self, run: SavedRun, exportable: Exportable, path: Path) -> None:
        program = traced("aoti", exportable)
        try:
            # One thread: a pool of processes would outlive the command's work.
            with warnings.catch_warnings(), torch._inductor.config.patch(compile_threads=1):  # noqa: SLF001
                warnings.simplefilter("ignore")  # torch's, about torch
                torch._inductor.aoti_compile_and_package(program, package_path=str(path))  # noqa: SLF001
        except Exception as error:
            raise refused("aoti", error) from error

    def read(self, run: SavedRun, exportable: Exportable, path: Path) -> Runner:
        module: Any = torch._inductor.aoti_load_package(str(path))  # noqa: SLF001
        return lambda inputs: _as_tuple(module(*inputs))


def _as_tuple(outputs: Any) -> Sequence[Tensor]:
    return (outputs,) if isinstance(outputs, Tensor) else outputs
