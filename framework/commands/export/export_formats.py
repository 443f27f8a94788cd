"""What of a run is exported, written in a format, and read back to compare."""

import logging
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from framework.config.saved_run import SavedRun
from framework.contracts.batch import Batch, move, taken
from framework.contracts.prediction import (
    ClassProbabilities,
    PredictedImages,
    PredictedMaps,
    PredictedNumbers,
)
from framework.errors import ConfigError, ResourceError, words_of
from framework.system.user_code import needed

Runner = Callable[[Sequence[Tensor]], Sequence[Tensor]]
LIBRARIES = ("torch.onnx", "onnxscript", "onnx_ir")
CUDA = "CUDAExecutionProvider"  # of the package onnxruntime-gpu
# What the values of a prediction are called, if they are one tensor.
PREDICTED = {
    ClassProbabilities: "probabilities",
    PredictedMaps: "classes",
    PredictedNumbers: "numbers",
    PredictedImages: "image",
}


@dataclass(frozen=True)
class Exportable:
    """A module with tensors in and tensors out, and real records for it.

    Attributes:
        module: Takes ``inputs`` and returns a tuple of tensors, in evaluation mode.
        inputs: Records of the validation data, a tensor per input.
        expected: What the run's own model makes of them, as in validation.
        input_names: The names of the inputs.
        output_names: The names of the outputs.
        batch_size: The only number of records that the export takes; None: any number.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    expected: tuple[Tensor, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    batch_size: int | None

    @property
    def dynamic_shapes(self) -> Any:
        """Which dimensions may vary, as torch.export takes it: the first, or none."""
        if self.batch_size is not None:
            return None
        batch = torch.export.Dim("batch")
        return (tuple({0: batch} for _ in self.inputs),)

    @property
    def forms(self) -> list[tuple[str, str, str]]:
        """``in`` or ``out``, the name, and the form, such as ``uint8 [batch, 3, 32, 32]``."""
        first = str(self.batch_size or "batch")
        tensors = [("in", *pair) for pair in zip(self.input_names, self.inputs, strict=True)]
        tensors += [("out", *pair) for pair in zip(self.output_names, self.expected, strict=True)]
        rows: list[tuple[str, str, str]] = []
        for title, name, tensor in tensors:
            shape = ", ".join([first, *map(str, tensor.shape[1:])])
            rows.append((title, name, f"{str(tensor.dtype).removeprefix('torch.')} [{shape}]"))
        return rows


class ModelOnly(nn.Module):
    """The model as it is, whose outputs are flattened into a tuple."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs = tree_leaves(self.model(*inputs))
        return tuple(output for output in outputs if isinstance(output, Tensor))


class WithPreprocessing(nn.Module):
    """Validation's augmentation, the model, and what the objective makes of its output."""

    def __init__(self, run: SavedRun, names: Sequence[str]) -> None:
        super().__init__()
        self.model = run.model
        self._augment = run.augment
        self._objective = run.predicts
        self._names = names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        batch: Batch = dict(zip(self._names, inputs, strict=True))
        predictions: Any = self._objective.predict(self.model, self._augment(batch, None))
        return (predictions.values,)


def make_exportable(
    run: SavedRun, data: Any, num_records: int, preprocess: bool, batch_size: int | None
) -> Exportable:
    """Return what to export, with records of the validation data on the model's device.

    Raises:
        ConfigError: C382 if inputs or outputs of the model are no tensors, or for too few records.
    """
    source = run.source(data)
    try:
        records = source.sample(batch_size or num_records)
    finally:
        source.close()
    count = len(records["index"])
    if batch_size is not None and count != batch_size:
        what = f"the data has {count} records"
        raise ConfigError(382, f"batch_size = {batch_size}", what, "give a smaller one")
    if batch_size is None and count == 1:  # torch.export takes a size of 1 for a constant
        records = taken(records, torch.tensor([0, 0]))
    records = move(records, run.device)
    calls: list[tuple[Any, ...]] = []

    def note(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        calls.append((*args, *named.values()))

    names = tuple(run.predicts.inputs)
    with torch.no_grad():
        # Values that the augmentation computes once are made here, and not while it is traced.
        batch = run.finish(records, 0)
        with run.model.register_forward_pre_hook(note, with_kwargs=True):
            predictions: Any = run.predicts.predict(run.model, batch)
        if preprocess and type(predictions) not in PREDICTED:
            what = "the objective makes no tensor of the model's output"
            fix = "leave it out: the model's own outputs are exported then"
            raise ConfigError(382, "preprocess = true", what, fix)
        inputs = tuple(records[name] for name in names) if preprocess else calls[0]
        if not all(isinstance(value, Tensor) and not value.is_nested for value in inputs):
            what = "takes something else than tensors"
            raise ConfigError(382, "model", what, "export a model whose inputs are tensors")
        if preprocess:
            module: nn.Module = WithPreprocessing(run, names)
            expected = (predictions.values,)
            output_names = (PREDICTED[type(predictions)],)
        else:
            module = ModelOnly(run.model)
            expected = module(*inputs)
            output_names = ("output",)
            if len(expected) > 1:
                output_names = tuple(f"output_{number}" for number in range(len(expected)))
    if len(names) != len(inputs):
        names = tuple(f"input_{number}" for number in range(len(inputs)))
    return Exportable(module.eval(), inputs, expected, names, output_names, batch_size)


def check_format(to: str) -> None:
    """Raise ResourceError R112 or R193 if a package or a compiler is missing."""
    if to == "safetensors":
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
    if to == "safetensors":
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
    except OSError:
        raise
    except Exception as error:
        what = f"the model cannot be exported ({words_of(error, 200)})"
        fix = "give batch_size=N if it takes only one size, or choose another format"
        raise ConfigError(383, f"to = {to}", what, fix) from error


def read_export(to: str, run: SavedRun, path: Path) -> Runner:
    """Return a function that computes what the file holds."""
    if to == "safetensors":
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
