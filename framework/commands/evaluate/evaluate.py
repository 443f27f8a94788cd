"""``paceline evaluate run=DIR``: the validation of a run again, on any data."""

import json
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig
from rich.table import Table

from framework.cli.allowed import Grant, allowed_targets, granted
from framework.cli.arguments import with_output, with_store
from framework.cli.hydra_app import resolved, run_app
from framework.cli.outcome import RunOutcome, spans_table, told
from framework.config.rule import Rule, check_known, check_values
from framework.config.targets import check_targets
from framework.errors import ConfigError, ResourceError
from framework.system.safe_text import SafeConsole
from framework.system.stopping import message_if_stopped

if TYPE_CHECKING:
    from framework.cli.run_ranks import RankedJob

RULES = {
    "run": Rule(str, means="the directory of a run"),
    "weights": Rule(str, means="best, last, average or a file"),
    "select": Rule(str | None, means="a comparison of fields, as in 'label in [3, 5]'"),
    "limit": Rule(int | None, 1),
    "val_batch_size": Rule(int | None, 1),
    "workers": Rule(int | None, 0, 1024),
    "device": Rule(str | None),
    "worst": Rule(int, 0, 1000),
}
DATA_RULES = {"val": Rule(str | dict | None, means="the path of a store, or of several by name")}
GROUPS = ("loader", "parallel", "precision")
OUTPUT_RULES = {"path": Rule(str | None, means="a folder")}
MOST_CLASSES = 20  # in the table; of more, those with the lowest f1
KEYS = (*RULES, *GROUPS, "data", "output", "allow_targets")


def main(arguments: list[str]) -> int:
    """Run the command. A word that is not an override is the directory of the run."""
    grant = granted(arguments)
    arguments = with_output(with_store(arguments, "evaluate", "run"))
    return run_app("evaluate", arguments, lambda cfg: told(partial(_evaluate, cfg, grant)))


def _evaluate(cfg: DictConfig, grant: Grant, run_dir: Path) -> RunOutcome:
    config: dict[str, Any] = resolved(cfg)
    allowed = allowed_targets(config, grant)
    check_known(config, KEYS)
    check_values(config, RULES)
    check_values(config["data"], DATA_RULES, "data.")
    check_values(config["output"], OUTPUT_RULES, "output.")
    check_targets(config, allowed)
    for key in ("select", "limit"):
        if config[key] is not None and config["data"]["val"] is None:
            what = "cuts other data; the run's own validation data is cut as it was"
            raise ConfigError(353, f"{key} = {config[key]}", what, "add data.val=...")
    output = Path(config["output"]["path"] or run_dir)
    is_new = not output.exists()
    with message_if_stopped("stopped{by}: nothing was written"):
        # These load torch, which a wrong key should not have to wait for.
        from framework.cli.run_ranks import RankedJob  # noqa: PLC0415
        from framework.commands.evaluate.evaluate_rank import evaluate_here  # noqa: PLC0415
        from framework.config.saved_config import read_config  # noqa: PLC0415

        saved = read_config(Path(config["run"])).config
        changes = _changes(config, saved)
        evaluation = {
            "run": config["run"],
            "weights": config["weights"],
            "changes": changes,
            "data": config["data"]["val"],
            "select": config["select"],
            "limit": config["limit"],
            "worst": config["worst"],
        }
        parallel = changes["parallel"]
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"cannot be made: {error.strerror}"
            raise ResourceError(101, f"output = {output}", what, "choose another folder") from error
        job = RankedJob(
            {"evaluation": evaluation, "parallel": parallel, "debug": None}, str(output), allowed
        )
        is_rank = "RANK" in os.environ
        starts_ranks = "num_processes" in parallel and not is_rank
        outcome = job.outcome(_in_ranks if starts_ranks else evaluate_here)
    if outcome.code == 0 and os.environ.get("RANK", "0") == "0":
        print_evaluation(output, json.loads((output / "evaluation.json").read_text("utf-8")))
    if outcome.code and is_new:
        with suppress(OSError):  # nothing is in it
            output.rmdir()
    return outcome


def _in_ranks(job: "RankedJob") -> RunOutcome:
    from framework.cli.run_ranks import launch_ranks  # noqa: PLC0415

    return launch_ranks(job, module="framework.commands.evaluate.evaluate_rank")


def _changes(config: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
    """Return the keys and blocks that replace those of the run."""
    changes = {name: config[name] for name in GROUPS if name in config}
    for key in ("val_batch_size", "device"):
        if config[key] is not None:
            changes[key] = config[key]
    if config["workers"] is not None:
        changes["workers"] = {**saved["workers"], "num": config["workers"]}
    parallel = changes.get("parallel", saved["parallel"])
    if "num_processes" in parallel:  # the ranks of this host, and a lost one is not replaced
        parallel = {**parallel, "num_nodes": 1, "max_restarts": 0}
    changes["parallel"] = parallel
    return changes


def print_evaluation(output: Path, summary: dict[str, Any]) -> None:
    """Print what ``evaluation.json`` holds: where the time went, classes, means and files."""
    console = SafeConsole()
    for name, result in summary["sets"].items():
        if result["spans"]:
            console.print(spans_table(result["spans"]))
        if "classes" in result:
            console.print(_classes_table(result["classes"]))
        speed = f"{result['wall_s']:.1f} s, {result['records_per_s']:,.0f} records/s"
        evaluated = f"evaluated: {result['records']} records of {result['data']} in {speed}"
        console.print(evaluated, soft_wrap=True)
        means = "  ".join(f"{key} {value:.4f}" for key, value in result["means"].items())
        console.print(f"{name} {means}", soft_wrap=True)
    files = ", ".join(["evaluation.json", *summary["files"]])
    console.print(f"weights: {summary['weights_file']}", soft_wrap=True)
    console.print(f"results: {output} ({files})", soft_wrap=True)


def _classes_table(classes: list[dict[str, Any]]) -> Table:
    """Return a row per class: all, or those that are guessed worst."""
    title = "classes"
    shown = classes
    if len(classes) > MOST_CLASSES:
        title = f"the {MOST_CLASSES} of {len(classes)} classes with the lowest f1"
        shown = sorted(classes, key=lambda row: (row["f1"] is None, row["f1"] or 0.0))
        shown = shown[:MOST_CLASSES]
    table = Table("class", title=title, title_justify="left")
    for name in ("count", "precision", "recall", "f1", "iou"):
        table.add_column(name, justify="right")
    for row in shown:
        figures = (row[name] for name in ("precision", "recall", "f1", "iou"))
        cells = ("" if value is None else f"{value:.4f}" for value in figures)
        table.add_row(row["name"], str(row["count"]), *cells)
    return table
