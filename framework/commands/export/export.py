"""``paceline export run=DIR to=FORMAT output=PATH``: a run's model for other programs."""

import os
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from framework.cli.allowed import Grant, allowed_targets, granted
from framework.cli.arguments import with_output, with_store
from framework.cli.hydra_app import resolved, run_app
from framework.cli.outcome import RunOutcome, told
from framework.config.rule import Rule, check_known, check_values
from framework.errors import ConfigError
from framework.system.stopping import message_if_stopped

FORMATS = {
    "safetensors": ".safetensors",
    "onnx": ".onnx",
    "torch_export": ".pt2",
    "aoti": ".pt2",
    "huggingface": "",
}
CARD = "MODEL_CARD.md"
WEIGHTS_ONLY = ("safetensors", "huggingface")
RULES = {
    "run": Rule(str, means="the directory of a run"),
    "to": Rule(str, choices=tuple(FORMATS)),
    "weights": Rule(str, means="best, last, average or a file"),
    "preprocess": Rule(bool),
    "tolerance": Rule(float, 0),
    "num_records": Rule(int, 1),
    "repeats": Rule(int, 1),
    "batch_size": Rule(int | None, 1),
    "device": Rule(str),
}
OUTPUT_RULES = {"path": Rule(str, means="a path")}
DATA_RULES = {"val": Rule(str | dict | None, means="the path of a store")}
KEYS = (*RULES, "output", "data", "allow_targets")


def main(arguments: list[str]) -> int:
    """Run the command. A word that is not an override is the directory of the run."""
    grant = granted(arguments)
    arguments = with_output(with_store(arguments, "export", "run"))
    return run_app("export", arguments, lambda cfg: told(lambda _: _export(cfg, grant)))


def _export(cfg: DictConfig, grant: Grant) -> RunOutcome:
    config: dict[str, Any] = resolved(cfg)
    allowed = allowed_targets(config, grant)
    check_known(config, KEYS)
    check_values(config, RULES)
    check_values(config["output"], OUTPUT_RULES, "output.")
    check_known(config["output"], tuple(OUTPUT_RULES), "output")
    check_values(config["data"], DATA_RULES, "data.")
    path = Path(config["output"]["path"])
    _check_path(path, config["to"])
    if config["preprocess"] and config["to"] in WEIGHTS_ONLY:
        what = f"to={config['to']} holds weights, and no program that could preprocess"
        fix = "choose to=onnx, torch_export or aoti, or leave it out"
        raise ConfigError(380, "preprocess = true", what, fix)
    with message_if_stopped("stopped{by}: nothing was written"):
        # These load torch, which a wrong key should not have to wait for.
        from framework.commands.export.export_job import ExportChoice, export_model  # noqa: PLC0415
        from framework.config.saved_run import ALONE, open_run  # noqa: PLC0415

        changes = {"parallel": ALONE, "device": config["device"], "compile": False}
        run = open_run(Path(config["run"]), allowed, config["weights"], changes)
        choice = ExportChoice(
            to=config["to"],
            path=path,
            preprocess=config["preprocess"],
            tolerance=config["tolerance"],
            num_records=config["num_records"],
            repeats=config["repeats"],
            batch_size=config["batch_size"],
            data=config["data"]["val"],
        )
        try:
            export_model(run, choice)
        finally:
            run.close()
    return RunOutcome(0, "exported")


def _check_path(path: Path, to: str) -> None:
    """Raise ConfigError C381 for a name that the format does not have, or that is taken."""
    suffix = FORMATS[to]
    if path.suffix and path.suffix != suffix:
        fix = f"give a folder, or a name that ends in {suffix}" if suffix else "give a folder"
        raise ConfigError(381, f"output = {path}", f"is not a name of to={to}", fix)
    if path.suffix:
        check_free(path.with_name(f"{path.name}.{CARD}"))
    if path.is_symlink() or not path.is_dir() or any(path.iterdir()):
        check_free(path)


def check_free(path: Path) -> None:
    """Raise ConfigError C381 for a name that is taken."""
    if os.path.lexists(path):
        fix = "remove it, or choose another place"
        raise ConfigError(381, f"output = {path}", "exists", fix)
