"""Write a model as ONNX, and compute it with ONNX Runtime."""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from framework.commands.export.export_formats import Runner, refused, traced
from framework.commands.export.exportable import Exportable
from framework.config.saved_run import SavedRun
from framework.system.extras import needed

LIBRARIES = ("torch.onnx", "onnxscript", "onnx_ir")
CUDA = "CUDAExecutionProvider"  # of the package onnxruntime-gpu
PACKAGES = ("onnx", "onnxscript", "onnxruntime")


class OnnxFormat:
    """A graph in ONNX. The weights of a model above 1.5 GB are in a second file, NAME.onnx.data."""

    def check(self) -> None:
        for package in PACKAGES:
            needed(package, "onnx")

    def write(self, run: SavedRun, exportable: Exportable, path: Path) -> None:
        program = traced("onnx", exportable)
        for library in LIBRARIES:  # they tell every step, and that torchvision is missing
            logging.getLogger(library).setLevel(logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's, about torch
                made = torch.onnx.export(
                    program,
                    dynamo=True,
                    input_names=exportable.input_names,
                    output_names=exportable.output_names,
                    verbose=False,
                )
            assert made is not None
            made.save(path)
        except Exception as error:
            raise refused("onnx", error) from error

    def read(self, run: SavedRun, exportable: Exportable, path: Path) -> Runner:
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
