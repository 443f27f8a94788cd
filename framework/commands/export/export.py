"""``paceline export run=DIR to=FORMAT output=PATH``: a run's model for other programs."""

import os
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from framework.cli.arguments import allowed_targets, granted, with_output
from framework.cli.outcome import RunOutcome, option, run_options
from framework.errors import ConfigError
from framework.system.stopping import message_if_stopped

FORMATS = {"safetensors": ".safetensors", "onnx": ".onnx", "torch_export": ".pt2", "aoti": ".pt2"}
CARD = "MODEL_CARD.md"


@dataclass(frozen=True)
class ExportOptions:
    """Export the model of a run: for PyTorch, ONNX or C++."""

    run: str = option(about="the directory of the run; 'paceline export DIR' is short for run=DIR")
    to: str = option(
        about="safetensors (weights), onnx, torch_export (.pt2), aoti (.pt2, compiled)",
        choices=tuple(FORMATS),
    )
    output: str = option(
        about="short: output=PATH; a file such as model.onnx, or a folder that gets model.onnx "
        "and MODEL_CARD.md",
        key="output.path",
    )
    weights: str = option(
        "best", "best (the last ones without validation), last, average (of ema_decay), or a file"
    )
    preprocess: bool = option(
        False,
        "the export takes records as the loader reads them (uint8 images) and gives probabilities",
    )
    tolerance: float = option(
        0.001, "largest difference between export and model that is allowed", least=0
    )
    num_records: int = option(64, "validation records to compare and time both on", least=1)
    repeats: int = option(20, "how often both are timed", least=1)
    batch_size: int | None = option(
        None, "records of a batch, if the model takes only one size; null: any number", least=1
    )
    val: str | dict | None = option(
        None,
        "a store to compare on; null: the run's own validation data",
        key="data.val",
        means="the path of a store",
    )
    device: str = option(
        "cpu", "where the model is traced, compiled, compared and timed: cpu, cuda, cuda:1, ..."
    )
    allow_targets: list[str] = option([], "packages of your own that the run's _target_ may name")


def main(arguments: list[str]) -> int:
    """Run the command. A word that is not an override is the directory of the run."""
    words = with_output(arguments)
    return run_options("export", words, ExportOptions, partial(_export, words), plain="run")


def _export(words: list[str], options: ExportOptions, _: Path) -> RunOutcome:
    asked = {"allow_targets": options.allow_targets, "run": options.run}
    allowed = allowed_targets(asked, granted(words))
    path = Path(options.output)
    suffix = FORMATS[options.to]
    if path.suffix and path.suffix != suffix:
        fix = f"give a folder, or a name that ends in {suffix}"
        raise ConfigError(381, f"output = {path}", f"is not a name of to={options.to}", fix)
    if path.suffix:
        check_free(path.with_name(f"{path.name}.{CARD}"))
    if path.is_symlink() or not path.is_dir() or any(path.iterdir()):
        check_free(path)
    if options.preprocess and options.to == "safetensors":
        what = "to=safetensors holds weights, and no program that could preprocess"
        fix = "choose to=onnx, torch_export or aoti, or leave it out"
        raise ConfigError(380, "preprocess = true", what, fix)
    with message_if_stopped("stopped{by}: nothing was written"):
        # These load torch, which a wrong key should not have to wait for.
        from framework.commands.export.export_model import export_model  # noqa: PLC0415
        from framework.config.saved_run import ALONE, open_run  # noqa: PLC0415

        changes = {"parallel": ALONE, "device": options.device, "compile": False}
        with closing(open_run(Path(options.run), allowed, options.weights, changes)) as run:
            export_model(run, options)
    return RunOutcome(0, "exported")


def check_free(path: Path) -> None:
    """Raise ConfigError C381 for a name that is taken."""
    if os.path.lexists(path):
        raise ConfigError(381, f"output = {path}", "exists", "remove it, or choose another place")
