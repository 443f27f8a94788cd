"""Write a model in a format, and read it back to compare."""

import logging
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config
from torch import Tensor

from framework.commands.export.export import WEIGHTS_ONLY
from framework.commands.export.exportable import Exportable, ModelOnly
from framework.config.saved_run import SavedRun
from framework.errors import ConfigError, ResourceError, words_of
from framework.system.extras import needed

Runner = Callable[[Sequence[Tensor]], Sequence[Tensor]]
LIBRARIES = ("torch.onnx", "onnxscript", "onnx_ir")
CUDA = "CUDAExecutionProvider"  # of the package onnxruntime-gpu


def check_format(to: str) -> None:
    """Raise ResourceError R112 or R193 if a package or a compiler is missing."""
    if to in WEIGHTS_ONLY:
        needed("safetensors", "safetensors")
    if to == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            needed(package, "onnx")
    compilers = filter(None, (os.environ.get("CXX"), "g++", "clang++"))
    if to == "aoti" and not any(map(shutil.which, compilers)):
        what = "no compiler here (g++ or clang++)"
        fix = "install g++, or choose to=torch_export or onnx"
        raise ResourceError(193, "to = aoti", what, fix)


def write_export(to: str, run: SavedRun, exportable: Exportable, path: Path) -> None:
    """Write the model. ONNX keeps weights above 1.5 GB in a second file, NAME.onnx.data.

    ConfigError C383 for a model that the format cannot hold.
    """
    if to in WEIGHTS_ONLY:
        from safetensors.torch import save_model  # noqa: PLC0415

        save_model(run.model, str(path), {"format": "pt"})
        return
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, about torch
            program = torch.export.export(
                exportable.module, exportable.inputs, dynamic_shapes=exportable.dynamic_shapes
            )
            if to == "torch_export":
                torch.export.save(program, path)
            elif to == "aoti":
                # One thread: a pool of processes would outlive the command's work.
                with torch._inductor.config.patch(compile_threads=1):  # noqa: SLF001
                    torch._inductor.aoti_compile_and_package(program, package_path=str(path))  # noqa: SLF001
            else:
                _save_onnx(program, exportable, path)
    except OSError:
        raise
    except Exception as error:
        what = f"the model cannot be exported ({words_of(error, 200) or type(error).__name__})"
        fix = "give batch_size=N if it takes only one size, or choose another format"
        raise ConfigError(383, f"to = {to}", what, fix) from error


def _save_onnx(program: torch.export.ExportedProgram, exportable: Exportable, path: Path) -> None:
    for library in LIBRARIES:  # they tell every step, and that torchvision is missing
        logging.getLogger(library).setLevel(logging.ERROR)
    made = torch.onnx.export(
        program,
        dynamo=True,
        input_names=exportable.input_names,
        output_names=exportable.output_names,
        verbose=False,
    )
    assert made is not None
    made.save(path)


def read_export(to: str, run: SavedRun, path: Path) -> Runner:
    """Return a function that computes what the file holds."""
    if to in WEIGHTS_ONLY:
        from safetensors.torch import load_model  # noqa: PLC0415

        model = run.build("model").to(run.device)
        load_model(model, str(path), device=str(run.device))
        module: Any = ModelOnly(model).eval()
    elif to == "torch_export":
        module = torch.export.load(path).module()
    elif to == "aoti":
        module = torch._inductor.aoti_load_package(str(path))  # noqa: SLF001
    else:
        return _onnx_runner(run, path)

    def compute(inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        outputs = module(*inputs)
        return (outputs,) if isinstance(outputs, Tensor) else outputs

    return compute


def _onnx_runner(run: SavedRun, path: Path) -> Runner:
    import onnxruntime  # noqa: PLC0415

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()  # as the model computes
    providers = ["CPUExecutionProvider"]
    if run.device.type == "cuda" and CUDA in onnxruntime.get_available_providers():
        providers.insert(0, CUDA)
    session: Any = onnxruntime.InferenceSession(str(path), options, providers=providers)
    names = [given.name for given in session.get_inputs()]

    def compute(inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        arrays = [tensor.cpu().numpy() for tensor in inputs]
        feed = dict(zip(names, arrays, strict=True))
        return [torch.from_numpy(array) for array in session.run(None, feed)]

    return compute
