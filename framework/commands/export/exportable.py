"""What of a run is exported: its model alone, or with preprocessing and probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
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
from framework.errors import ConfigError

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
