"""``paceline predict run=DIR input=... output=...``: what a run's model says about new data."""

import os
import time
from pathlib import Path

from omegaconf import DictConfig

from framework.cli.arguments import Grant, granted, with_output, with_run
from framework.cli.hydra_app import checked_options, run_app
from framework.cli.outcome import RunOutcome, run_action
from framework.cli.tables import counted_bar, plural
from framework.config.schema import check_known, option_rules
from framework.config.targets import parameters_of
from framework.errors import EXIT_SKIPPED, ConfigError, say
from framework.system.stopping import message_if_stopped

GROUPS = ("input", "loader", "precision")
FILES = {".csv": "table", ".parquet": "table", ".json": "boxes"}


def main(arguments: list[str]) -> int:
    """Run the command. A word that is not an override is the directory of the run."""
    grant = granted(arguments)
    arguments = with_output(with_run(arguments, "predict"))
    return run_app("predict", arguments, lambda cfg: run_action(lambda _: _predict(cfg, grant)))


def _predict(cfg: DictConfig, grant: Grant) -> RunOutcome:
    config, allowed = checked_options(cfg, grant, option_rules("predict"), GROUPS)
    check_known(config["output"], ("path",), "output")
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
    place = Path(os.path.realpath(path))
    for own in given if isinstance(given, list) else [given]:
        if isinstance(own, str) and Path(os.path.realpath(own)) in (place, *place.parents):
            what = f"lies in the input {own}"
            raise ConfigError(356, f"output.path = {path}", what, "choose another place")
    with message_if_stopped("stopped{by}: finished parts are kept; the same command continues"):
        # These load torch, which a wrong key should not have to wait for.
        import torch  # noqa: PLC0415

        from framework.cli.run_ranks import print_notes  # noqa: PLC0415
        from framework.commands.predict.prediction_job import Prediction, predict  # noqa: PLC0415
        from framework.config.prepare_data import input_of  # noqa: PLC0415
        from framework.config.resume import read_config  # noqa: PLC0415
        from framework.config.saved_run import ALONE, open_run  # noqa: PLC0415
        from framework.measure.host import threads_per_rank  # noqa: PLC0415

        run_dir = Path(config["run"])
        keys = ("loader", "precision", "device")
        changes = {key: config[key] for key in keys if config.get(key) is not None}
        changes["parallel"] = ALONE
        if config["batch_size"] is not None:
            changes["val_batch_size"] = config["batch_size"]
        if config["workers"] is not None:
            saved = read_config(run_dir).config
            changes["workers"] = {**saved["workers"], "num": config["workers"]}
        run = open_run(run_dir, allowed, config["weights"], changes)
        block = config["input"]  # whose folders have labels only if they are asked for
        if "labeled" in parameters_of(block.get("_target_")) and block.get("labeled") is None:
            block = {**block, "labeled": False}
        source = run.prepared(input_of("input", block, {"on_error": config["on_error"]}, allowed))
        skips = config["on_error"] == "skip"
        torch.set_num_threads(threads_per_rank())
        print_notes(source)
        start = time.perf_counter()
        job = Prediction(run, source, config["input"], path, form, config["top_k"], skips)
        with counted_bar(f"predicting {path}", source.manifest.num_records) as update:
            predicted = predict(job, lambda items: update(advance=items))
        wall_s = time.perf_counter() - start
    fresh = predicted.num_records - predicted.num_resumed
    words = f"predicted {predicted.num_records} records into {path}: {wall_s:.1f} s, "
    words += f"{fresh / wall_s:,.0f} records/s, {len(predicted.bad)} skipped"
    if predicted.num_resumed:
        words += f" ({predicted.num_resumed} records had been predicted before)"
    say(words)
    if not predicted.bad:
        return RunOutcome(0, "finished")
    skipped = f"{plural(len(predicted.bad), 'item')} skipped: {path}.bad.jsonl lists them"
    return RunOutcome(EXIT_SKIPPED, skipped)
