"""``paceline predict run=DIR input=... output=...``: what a run's model says about new data."""

import os
import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from framework.cli.arguments import Grant, allowed_targets, granted, with_output, with_store
from framework.cli.hydra_app import run_app
from framework.cli.hydra_session import resolved
from framework.cli.outcome import RunOutcome, run_action
from framework.cli.tables import counted_bar, plural
from framework.config.schema import check_known, check_values, option_rules
from framework.config.targets import check_targets, parameters_of
from framework.errors import EXIT_SKIPPED, ConfigError, say
from framework.system.stopping import message_if_stopped

GROUPS = ("input", "loader", "precision")
FILES = {".csv": "table", ".parquet": "table", ".json": "boxes"}


def main(arguments: list[str]) -> int:
    """Run the command. A word that is not an override is the directory of the run."""
    grant = granted(arguments)
    arguments = with_output(with_store(arguments, "predict", "run"))
    return run_app("predict", arguments, lambda cfg: run_action(lambda _: _predict(cfg, grant)))


def _predict(cfg: DictConfig, grant: Grant) -> RunOutcome:
    config: dict[str, Any] = resolved(cfg)
    allowed = allowed_targets(config, grant)
    rules = option_rules("predict")
    check_known(config, (*(key.partition(".")[0] for key in rules), *GROUPS, "allow_targets"))
    check_known(config["output"], ("path",), "output")
    check_values(config, rules)
    check_targets(config, allowed)
    path = Path(config["output"]["path"])
    what = fix = ""
    if config["as"] is not None and path.suffix in FILES:
        what = f"names a file, and as={config['as']} makes a folder"
        fix = "name a folder, or leave out as"
    elif config["as"] is None and path.suffix not in FILES:
        what = "must end in .csv, .parquet or .json, or be a folder with as=mask or as=image"
        fix = "correct it"
    elif path.suffix in FILES and path.is_dir():
        what = "is a folder"
        fix = "name a file, or add as=mask or as=image"
    if what:
        raise ConfigError(354, f"output.path = {path}", what, fix)
    form = config["as"] or FILES[path.suffix]
    given = config["input"].get("path")
    for own in given if isinstance(given, list) else [given]:
        if isinstance(own, str):
            real, place = os.path.realpath(own), os.path.realpath(path)
            if place == real or place.startswith(f"{real}{os.sep}"):
                what = f"lies in the input {own}"
                raise ConfigError(356, f"output.path = {path}", what, "choose another place")
    with message_if_stopped("stopped{by}: finished parts are kept; the same command continues"):
        # These load torch, which a wrong key should not have to wait for.
        from framework.commands.predict.prediction_job import Prediction  # noqa: PLC0415
        from framework.config.prepare_data import input_of  # noqa: PLC0415
        from framework.config.resume import read_config  # noqa: PLC0415
        from framework.config.saved_run import ALONE, open_run  # noqa: PLC0415

        run_dir = Path(config["run"])
        changes = {name: config[name] for name in ("loader", "precision") if name in config}
        changes["parallel"] = ALONE
        for key, name in (("batch_size", "val_batch_size"), ("device", "device")):
            if config[key] is not None:
                changes[name] = config[key]
        if config["workers"] is not None:
            saved = read_config(run_dir).config
            changes["workers"] = {**saved["workers"], "num": config["workers"]}
        run = open_run(run_dir, allowed, config["weights"], changes)
        block = config["input"]  # whose folders have labels only if they are asked for
        if "labeled" in parameters_of(block.get("_target_")) and block.get("labeled") is None:
            block = {**block, "labeled": False}
        on_error = {"on_error": config["on_error"]}
        source = run.prepared(input_of("input", block, on_error, allowed))
        skips = config["on_error"] == "skip"
        return _show(Prediction(run, source, config["input"], path, form, config["top_k"], skips))


def _show(prediction: Any) -> RunOutcome:
    import torch  # noqa: PLC0415

    from framework.cli.run_ranks import print_notes  # noqa: PLC0415
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
