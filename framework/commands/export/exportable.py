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
    """Return what to export, with records of the validation data.

    Raises:
        ConfigError: C382 if inputs or outputs of the model are no tensors.
    """
    records = _sampled(run, data, num_records, batch_size)
    names = tuple(run.predicts.inputs)
    with torch.no_grad():
        # Values that the augmentation computes once are made here, and not while it is traced.
        seen, predictions = _predicted(run, run.finish(records, 0))
        if preprocess:
            if type(predictions) not in PREDICTED:
                what = "the objective makes no tensor of the model's output"
                fix = "leave it out: the model's own outputs are exported then"
                raise ConfigError(382, "preprocess = true", what, fix)
            inputs = tuple(records[name] for name in names)
            _check_tensors(inputs)
            expected = (predictions.values,)
            module: nn.Module = WithPreprocessing(run, names)
            output_names = (PREDICTED[type(predictions)],)
        else:
            inputs = seen
            _check_tensors(inputs)
            module = ModelOnly(run.model)
            expected = module(*inputs)
            output_names = ("output",)
            if len(expected) > 1:
                output_names = tuple(f"output_{number}" for number in range(len(expected)))
    if len(names) != len(inputs):
        names = tuple(f"input_{number}" for number in range(len(inputs)))
    return Exportable(module.eval(), inputs, expected, names, output_names, batch_size)


def _sampled(run: SavedRun, data: Any, num_records: int, batch_size: int | None) -> Batch:
    """Return some records on the model's device: at least two if the batch size is free."""
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
    return move(records, run.device)


def _predicted(run: SavedRun, batch: Batch) -> tuple[tuple[Any, ...], Any]:
    """Return the arguments that the objective calls the model with, and what it predicts."""
    calls: list[tuple[Any, ...]] = []

    def note(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        calls.append((*args, *named.values()))

    with run.model.register_forward_pre_hook(note, with_kwargs=True):
        predictions = run.predicts.predict(run.model, batch)
    return calls[0], predictions


def _check_tensors(values: Sequence[Any]) -> None:
    if not all(isinstance(value, Tensor) and not value.is_nested for value in values):
        what = "takes something else than tensors"
        raise ConfigError(382, "model", what, "export a model whose inputs are tensors")


def form_of_tensor(tensor: Tensor, batch_size: int | None) -> str:
    """Return type and shape, such as ``uint8 [batch, 3, 32, 32]``."""
    first = "batch" if batch_size is None else str(batch_size)
    shape = ", ".join([first, *map(str, tensor.shape[1:])])
    return f"{str(tensor.dtype).removeprefix('torch.')} [{shape}]"
