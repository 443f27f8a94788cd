"""``paceline predict run=DIR input=... output=...``: what a run's model says about new data."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from framework.cli.allowed import Grant, allowed_targets, granted
from framework.cli.arguments import with_output, with_store
from framework.cli.hydra_app import resolved, run_app
from framework.cli.outcome import RunOutcome, told
from framework.cli.units import plural
from framework.config.rule import Rule, check_known, check_values
from framework.config.signature import static_signature
from framework.config.targets import check_targets
from framework.errors import EXIT_SKIPPED, ConfigError, say
from framework.system.stopping import message_if_stopped

if TYPE_CHECKING:
    from framework.config.saved_run import SavedRun
    from framework.contracts.records import RecordInput

RULES = {
    "run": Rule(str, means="the directory of a run"),
    "weights": Rule(str, means="best, last, average or a file"),
    "as": Rule(str | None, choices=("mask", "image"), number=354),
    "top_k": Rule(int, 1),
    "on_error": Rule(str, choices=("fail", "skip")),
    "batch_size": Rule(int | None, 1),
    "workers": Rule(int | None, 0, 1024),
    "device": Rule(str | None),
}
OUTPUT_RULES = {"path": Rule(str, means="a path")}
GROUPS = ("input", "loader", "precision")
KEYS = (*RULES, *GROUPS, "output", "allow_targets")
FILES = {".csv": "table", ".parquet": "table", ".json": "boxes"}


def main(arguments: list[str]) -> int:
    """Run the command. A word that is not an override is the directory of the run."""
    grant = granted(arguments)
    arguments = with_output(with_store(arguments, "predict", "run"))
    return run_app("predict", arguments, lambda cfg: told(lambda _: _predict(cfg, grant)))


def _predict(cfg: DictConfig, grant: Grant) -> RunOutcome:
    config: dict[str, Any] = resolved(cfg)
    allowed = allowed_targets(config, grant)
    check_known(config, KEYS)
    check_values(config, RULES)
    check_values(config["output"], OUTPUT_RULES, "output.")
    check_known(config["output"], tuple(OUTPUT_RULES), "output")
    check_targets(config, allowed)
    path = Path(config["output"]["path"])
    form = _form(path, config["as"])
    _check_apart(config["input"], path)
    with message_if_stopped("stopped{by}: finished parts are kept; the same command continues"):
        # These load torch, which a wrong key should not have to wait for.
        from framework.commands.predict.prediction_job import Prediction  # noqa: PLC0415

        run = _open(config, allowed)
        source = _input(config["input"], config["on_error"], allowed, run)
        prediction = Prediction(
            run,
            source,
            config["input"],
            path,
            form,
            config["top_k"],
            skip_bad=config["on_error"] == "skip",
        )
        return _show(prediction)


def _form(path: Path, given: str | None) -> str:
    """Return what the output holds. ConfigError C354 if its name does not say so."""
    where = f"output.path = {path}"
    if given is not None:
        if path.suffix in FILES:
            what = f"names a file, and as={given} makes a folder"
            raise ConfigError(354, where, what, "name a folder, or leave out as")
        return given
    if path.suffix not in FILES:
        what = "must end in .csv, .parquet or .json, or be a folder with as=mask or as=image"
        raise ConfigError(354, where, what, "correct it")
    if path.is_dir():
        raise ConfigError(354, where, "is a folder", "name a file, or add as=mask or as=image")
    return FILES[path.suffix]


def _check_apart(block: Mapping[str, Any], path: Path) -> None:
    """Raise ConfigError C356 if the output would replace the input, or lie inside it."""
    given = block.get("path")
    paths = given if isinstance(given, list) else [given]
    for own in paths:
        if not isinstance(own, str):
            continue
        real, place = os.path.realpath(own), os.path.realpath(path)
        if place == real or place.startswith(f"{real}{os.sep}"):
            what = f"lies in the input {own}"
            raise ConfigError(356, f"output.path = {path}", what, "choose another place")


def _open(config: dict[str, Any], allowed: tuple[str, ...]) -> "SavedRun":
    from framework.config.saved_config import read_config  # noqa: PLC0415
    from framework.config.saved_run import ALONE, open_run  # noqa: PLC0415

    run_dir = Path(config["run"])
    changes = {name: config[name] for name in ("loader", "precision") if name in config}
    if config["batch_size"] is not None:
        changes["val_batch_size"] = config["batch_size"]
    if config["device"] is not None:
        changes["device"] = config["device"]
    if config["workers"] is not None:
        saved = read_config(run_dir).config
        changes["workers"] = {**saved["workers"], "num": config["workers"]}
    return open_run(run_dir, allowed, config["weights"], {**changes, "parallel": ALONE})


def _input(
    block: dict[str, Any], on_error: str, allowed: tuple[str, ...], run: "SavedRun"
) -> "RecordInput":
    """Return the input, prepared as packing did. Folders have labels only if they are asked for."""
    from framework.config.prepare_data import input_of  # noqa: PLC0415

    signature = static_signature(str(block.get("_target_")))
    if signature is not None and "labeled" in signature.names and block.get("labeled") is None:
        block = {**block, "labeled": False}
    source = input_of("input", block, {"on_error": on_error}, allowed)
    return run.prepared(source)


def _show(prediction: Any) -> RunOutcome:
    import torch  # noqa: PLC0415

    from framework.cli.counted_bar import counted_bar  # noqa: PLC0415
    from framework.cli.progress import print_notes  # noqa: PLC0415
    from framework.commands.predict.prediction_job import predict  # noqa: PLC0415
    from framework.measure.host import threads_per_rank  # noqa: PLC0415

    torch.set_num_threads(threads_per_rank())
    print_notes(prediction.source)
    start = time.perf_counter()
    total = prediction.source.manifest.num_records
    with counted_bar(f"predicting {prediction.path}", total) as update:
        predicted = predict(prediction, lambda _, items: update(advance=items))
    wall_s = time.perf_counter() - start
    fresh = predicted.num_records - predicted.num_resumed
    words = f"predicted {predicted.num_records} records into {prediction.path}: "
    words += f"{wall_s:.1f} s, {fresh / wall_s:,.0f} records/s, {len(predicted.bad)} skipped"
    if predicted.num_resumed:
        words += f" ({predicted.num_resumed} records had been predicted before)"
    say(words)
    if not predicted.bad:
        return RunOutcome(0, "finished")
    skipped = f"{plural(len(predicted.bad), 'item')} skipped"
    return RunOutcome(EXIT_SKIPPED, f"{skipped}: {prediction.path}.bad.jsonl lists them")
