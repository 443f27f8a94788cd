"""Export a model: write it beside its place, compare it on real records, add a card, publish."""

import logging
import math
import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config
import yaml
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from framework import __version__
from framework.cli.tables import size
from framework.commands.export.export import CARD, FORMATS, ExportOptions, check_free
from framework.config.saved_run import SavedRun, chosen_file
from framework.contracts import prediction
from framework.contracts.batch import Batch, move, taken
from framework.errors import ConfigError, ResourceError, say, words_of
from framework.measure.statistics import median, spread_share
from framework.pack.jobs import file_sha256
from framework.system import durable
from framework.system import run_dir as files
from framework.system.user_code import needed

Runner = Callable[[Sequence[Tensor]], Sequence[Tensor]]
LIBRARIES = ("torch.onnx", "onnxscript", "onnx_ir")
CUDA = "CUDAExecutionProvider"  # of the package onnxruntime-gpu
# What the values of a prediction are called, if they are one tensor.
PREDICTED = {
    prediction.ClassProbabilities: "probabilities",
    prediction.PredictedMaps: "classes",
    prediction.PredictedNumbers: "numbers",
    prediction.PredictedImages: "image",
}
WARM_UP = 3  # runs that are not counted
USER = re.compile(r"://[^/@\s]+@")  # a name and a password in an address, which nobody publishes
USE = {
    "safetensors": """from framework import load

run = load("{run_dir}")             # the run's own directory, or
state = safetensors.torch.load_file("{name}")  # the weights alone""",
    "onnx": """import onnxruntime

session = onnxruntime.InferenceSession("{name}")
outputs = session.run(None, {{{feed}}})""",
    "torch_export": """import torch

outputs = torch.export.load("{name}").module()({inputs})""",
    "aoti": """import torch

outputs = torch._inductor.aoti_load_package("{name}")({inputs})""",
}


@dataclass(frozen=True)
class Exportable:
    """A module with tensors in and tensors out, and real records for it."""

    module: nn.Module  # takes ``inputs`` and returns a tuple of tensors, in evaluation mode
    inputs: tuple[Tensor, ...]  # records of the validation data, a tensor per input
    expected: tuple[Tensor, ...]  # what the run's own model makes of them, as in validation
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    batch_size: int | None  # the only number of records that the export takes; None: any number

    @property
    def forms(self) -> list[tuple[str, str, str]]:
        """``in`` or ``out``, the name, and the form, such as ``uint8 [batch, 3, 32, 32]``."""
        tensors = [("in", *pair) for pair in zip(self.input_names, self.inputs, strict=True)]
        tensors += [("out", *pair) for pair in zip(self.output_names, self.expected, strict=True)]
        rows: list[tuple[str, str, str]] = []
        for title, name, tensor in tensors:
            shape = ", ".join(map(str, (self.batch_size or "batch", *tensor.shape[1:])))
            rows.append((title, name, f"{str(tensor.dtype).removeprefix('torch.')} [{shape}]"))
        return rows


class ModelOnly(nn.Module):
    """The model as it is, with a flat tuple of the outputs of records: a mean loss is none."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs = tree_leaves(self.model(*inputs))
        return tuple(output for output in outputs if isinstance(output, Tensor) and output.dim())


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


def export_model(run: SavedRun, options: ExportOptions) -> None:
    """Export the model of a run, and print how it compares.

    Raises:
        ConfigError: C350 to C352 for data that the model cannot take, C382 and C383 for a model
            that cannot be exported, C384 if the export differs.
        ResourceError: R101 if the disk refuses a file, R112 or R193 without a package or compiler.
    """
    to, path = options.to, Path(options.output)
    check_format(to)
    exportable = make_exportable(
        run, options.val, options.num_records, options.preprocess, options.batch_size
    )
    folder = durable.temporary_name(path)
    name = path.name if path.suffix else f"model{FORMATS[to]}"
    try:
        folder.mkdir(parents=True)
        write_export(to, run, exportable, folder / name)
        runner = read_export(to, run, folder / name)
        compared = compare(exportable, runner, options.tolerance, options.repeats)
        card = model_card(run, exportable, compared, to, options.preprocess, folder / name)
        durable.write_text(folder / (f"{name}.{CARD}" if path.suffix else CARD), card)
        made = sorted(folder.iterdir(), key=lambda file: file.name == name)  # the model last
        for file in made:
            durable.sync(file)
        if path.suffix:
            for file in made:
                check_free(path.with_name(file.name))
            for file in made:
                durable.move(file, path.with_name(file.name))
        else:
            if path.is_dir():
                path.rmdir()  # empty, as was checked
            durable.move(folder, path)
    except OSError as error:
        what = f"cannot write: {error.strerror or error}"
        raise ResourceError(101, str(path), what, "free space or choose another place") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    places = path.rglob("*") if path.is_dir() else [path]
    say(f"exported: {path} ({size(sum(map(os.path.getsize, places)))})")
    for title, tensor, form in exportable.forms:
        say(f"{title}: {tensor} {form}")
    for line in compared:
        say(line)


def make_exportable(
    run: SavedRun, data: Any, num_records: int, preprocess: bool, batch_size: int | None
) -> Exportable:
    """Return what to export, with records of the validation data on the model's device.

    ConfigError C382 if inputs or outputs of the model are no tensors, or for too few records.
    """
    with closing(run.source(data)) as source:
        records = source.sample(batch_size or num_records)
    count = len(records["index"])
    if batch_size not in (None, count):
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
        fix = "install g++, or choose to=torch_export or onnx"
        raise ResourceError(193, "to = aoti", "no compiler here (g++ or clang++)", fix)


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
            inputs = exportable.inputs
            shapes: Any = None
            if exportable.batch_size is None:
                batch = torch.export.Dim("batch")
                shapes = (tuple({0: batch} for _ in inputs),)
            program = torch.export.export(exportable.module, inputs, dynamic_shapes=shapes)
            if to == "torch_export":
                torch.export.save(program, path)
            elif to == "aoti":
                # One thread: a pool of processes would outlive the command's work.
                with torch._inductor.config.patch(compile_threads=1):  # noqa: SLF001
                    torch._inductor.aoti_compile_and_package(program, package_path=str(path))  # noqa: SLF001
            else:
                for library in LIBRARIES:  # they tell every step, and that torchvision is missing
                    logging.getLogger(library).setLevel(logging.ERROR)
                names: dict[str, Any] = {"input_names": exportable.input_names}
                names["output_names"] = exportable.output_names
                made = torch.onnx.export(program, dynamo=True, verbose=False, **names)
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
        import onnxruntime  # noqa: PLC0415

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()  # as the model computes
        providers = ["CPUExecutionProvider"]
        if run.device.type == "cuda" and CUDA in onnxruntime.get_available_providers():
            providers.insert(0, CUDA)
        session: Any = onnxruntime.InferenceSession(str(path), options, providers=providers)
        names = [given.name for given in session.get_inputs()]

        def run_session(*inputs: Tensor) -> Sequence[Tensor]:
            feed = dict(zip(names, [tensor.cpu().numpy() for tensor in inputs], strict=True))
            return [torch.from_numpy(array) for array in session.run(None, feed)]

        module = run_session

    def compute(inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        outputs = module(*inputs)
        return (outputs,) if isinstance(outputs, Tensor) else outputs

    return compute


def compare(exportable: Exportable, runner: Runner, tolerance: float, repeats: int) -> list[str]:
    """Compare on all records at once and, if the export takes any number, on one alone.

    Return lines on the largest difference of any number, or of class numbers the share that
    differs, and on the times of both, measured in turn. ConfigError C384 above ``tolerance``.
    """
    inputs = exportable.inputs
    counts = [len(inputs[0])]
    if exportable.batch_size is None:
        counts.append(1)
    where = f"tolerance = {tolerance:g}"
    fix = "raise it if this is small enough, or choose another format"
    largest = 0.0
    with torch.no_grad():
        for count in counts:
            outputs = runner([tensor[:count] for tensor in inputs])
            expected = [tensor[:count] for tensor in exportable.expected]
            shapes = [[tuple(part.shape) for part in parts] for parts in (outputs, expected)]
            if shapes[0] != shapes[1]:
                what = f"the export gives outputs of the shapes {shapes[0]} instead of {shapes[1]}"
                raise ConfigError(384, where, what, fix)
            largest = max([largest, *map(difference, outputs, expected)])
        if not largest <= tolerance:
            what = f"the export differs from the model by {largest:.3g}"
            raise ConfigError(384, where, what, fix)
        model_s: list[float] = []
        export_s: list[float] = []
        for _ in range(WARM_UP + repeats):
            model_s.append(_seconds(lambda: exportable.module(*inputs), inputs))
            export_s.append(_seconds(lambda: runner(inputs), inputs))
    words: list[str] = []
    for name, times in (("model", model_s), ("export", export_s)):
        del times[:WARM_UP]
        spread = f"{100 * spread_share(times):.0f} %"
        words.append(f"{name} {1e3 * median(times):.3g} ms ± {spread}")
    factor = f"{median(model_s) / median(export_s):.2f} x as fast"
    measured = f"{', '.join(words)} ({factor}), measured {repeats} times in turn"
    return [
        f"largest difference: {largest:.3g} over {counts[0]} records (tolerance {tolerance:g})",
        f"time of {counts[0]} records: {measured}",
    ]


def difference(output: Tensor, expected: Tensor) -> float:
    """Return the largest difference of two tensors; of integers, the share that differs.

    A number that is NaN or infinite in one alone is an infinite difference.
    """
    output = output.to(expected.device)
    if not expected.numel():
        return 0.0
    if not expected.is_floating_point():
        return float((output != expected).double().mean())
    equal = (output == expected) | (output.isnan() & expected.isnan())
    apart = (output.double() - expected.double()).abs()
    apart = torch.where(equal, 0.0, apart.nan_to_num(nan=math.inf))
    return float(apart.max())


def _seconds(compute: Callable[[], object], inputs: Sequence[Tensor]) -> float:
    begin = time.perf_counter()
    compute()
    if inputs[0].is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def model_card(
    run: SavedRun, export: Exportable, compared: list[str], to: str, preprocess: bool, model: Path
) -> str:
    """Return the card of a model that was exported to the file ``model``, in Markdown.

    It is made of the files in the run's directory, in which secrets are only named.
    """
    shown = files.shown
    facts = files.read_object(run.run_dir / files.FACTS)
    summary = files.read_object(run.run_dir / files.SUMMARY)
    best = files.numbers(files.flat(summary.get("best") or summary.get("val")))
    best.pop("step", None)
    data = {name: files.mapping(own) for name, own in files.mapping(facts.get("data")).items()}
    name = shown(run.run_dir.resolve().name)
    takes = "what the model itself takes: normalized values"
    if preprocess:
        takes = "what the loader reads, such as uint8 pixels; preprocessing is inside"
    inputs = ", ".join(export.input_names)
    feed = ", ".join(f'"{own}": {own}' for own in export.input_names)
    use = USE[to].format(name=model.name, inputs=inputs, feed=feed, run_dir=name)
    splits: list[list[str]] = []
    for split, known in data.items():
        cells = (known.get(key) or "unknown" for key in ("num_records", "source", "digest"))
        splits.append([shown(split), *map(shown, cells)])
    classes = ", ".join(files.words(data.get("train", {}).get("classes")))
    versions = files.mapping(facts.get("versions"))
    started = {
        "command": " ".join(files.words(facts.get("command"))),
        "started": facts.get("started"),
        "git": facts.get("git"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    config = files.read_object(files.newest_config(run.run_dir))
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    fence = max(["``", *re.findall("`{3,}", text)], key=len) + "`"
    weights = f"{run.weights} (sha256 {file_sha256(chosen_file(run.run_dir, run.weights))})"
    metrics = [(shown(metric), f"{value:.6g}") for metric, value in best.items()]
    parts = [
        f"# {name}",
        f"Exported by Paceline {__version__} to `{to}`. It takes {takes}.",
        "## Use",
        f"```python\n{use}\n```",
        _table(("tensor", "type and shape"), [form[1:] for form in export.forms]),
        "## Metrics",
        _table(("metric of the best validation", "value"), metrics),
        f"Weights: {weights}. Steps: {shown(summary.get('steps'))}.",
        "## Data",
        _table(("split", "records", "source", "digest"), splits),
        f"Classes: {shown(classes) or 'none are named'}.",
        "## Compared with the model",
        "\n".join(f"- {line}" for line in compared),
        f"SHA-256 of `{model.name}`: `{file_sha256(model)}`.",
        "## Training",
        _table(("fact", "value"), [(fact, shown(value)) for fact, value in started.items()]),
        "## Configuration",
        f"{fence}yaml\n{text.rstrip()}\n{fence}",
    ]
    return USER.sub("://", "\n\n".join(part for part in parts if part)) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    cells = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells))
