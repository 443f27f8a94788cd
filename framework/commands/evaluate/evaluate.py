"""``paceline evaluate run=DIR``: the validation of a run again, on any data."""

import json
import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from framework.cli.arguments import Grant, block_words, granted, with_output, with_run
from framework.cli.hydra_app import checked_options, run_app
from framework.cli.outcome import RunOutcome, run_action
from framework.cli.signals import begin_rank
from framework.cli.tables import print_spans, print_table
from framework.config.schema import option_rules
from framework.errors import ConfigError, ResourceError
from framework.system.safe_text import SafeConsole
from framework.system.stopping import message_if_stopped

if TYPE_CHECKING:
    from framework.cli.run_ranks import RankedJob

GROUPS = ("loader", "parallel", "precision")
MOST_CLASSES = 20  # in the table; of more, those with the lowest f1
SHARES = ("precision", "recall", "f1", "iou")
JOB_KEYS = ("run", "weights", "select", "limit", "worst")


def main(arguments: list[str]) -> int:
    """Run the command. A word that is not an override is the directory of the run."""
    grant = granted(arguments)
    arguments = with_output(with_run(arguments, "evaluate"))
    return run_app("evaluate", arguments, lambda cfg: run_action(partial(_evaluate, cfg, grant)))


def _evaluate(cfg: DictConfig, grant: Grant, run_dir: Path) -> RunOutcome:
    config, allowed = checked_options(cfg, grant, option_rules("evaluate"), GROUPS)
    for key in ("select", "limit"):
        if config[key] is not None and config["data"]["val"] is None:
            what = "cuts other data; the run's own validation data is cut as it was"
            raise ConfigError(353, f"{key} = {config[key]}", what, "add data.val=...")
    output = Path(config["output"]["path"] or run_dir)
    is_new = not output.exists()
    with message_if_stopped("stopped{by}: nothing was written"):
        # These load torch, which a wrong key should not have to wait for.
        from framework.cli.run_ranks import RankedJob, launch_ranks  # noqa: PLC0415
        from framework.config.resume import read_config  # noqa: PLC0415

        saved = read_config(Path(config["run"])).config
        keys = (*GROUPS, "val_batch_size", "device")
        changes = {key: config[key] for key in keys if config.get(key) is not None}
        if config["workers"] is not None:
            changes["workers"] = {**saved["workers"], "num": config["workers"]}
        parallel = changes.get("parallel", saved["parallel"])
        if "num_processes" in parallel:  # the ranks of this host, and a lost one is not replaced
            parallel = {**parallel, "num_nodes": 1, "max_restarts": 0}
        changes["parallel"] = parallel
        evaluation = {key: config[key] for key in JOB_KEYS}
        evaluation |= {"changes": changes, "data": config["data"]["val"]}
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"cannot be made: {error.strerror}"
            raise ResourceError(101, f"output = {output}", what, "choose another folder") from error
        plan = {"evaluation": evaluation, "parallel": parallel, "debug": None}
        action = evaluate_here
        if "num_processes" in parallel and "RANK" not in os.environ:
            action = partial(launch_ranks, module="framework.commands.evaluate.evaluate")
        outcome = RankedJob(plan, str(output), allowed).outcome(action)
    if outcome.code == 0 and os.environ.get("RANK", "0") == "0":
        print_evaluation(output, json.loads((output / "evaluation.json").read_text("utf-8")))
    if outcome.code and is_new:
        with suppress(OSError):  # nothing is in it
            output.rmdir()
    return outcome


def evaluate_here(job: "RankedJob") -> RunOutcome:
    """Evaluate in this process, which may be one of several ranks. Rank 0 writes the results."""
    from framework.commands.evaluate.evaluation import EvaluationJob, write_evaluation  # noqa: PLC0415

    write_evaluation(EvaluationJob(**job.config["evaluation"]), job.allowed, Path(job.run_dir))
    return RunOutcome(0, "evaluated")


def print_evaluation(output: Path, summary: dict[str, Any]) -> None:
    """Print what ``evaluation.json`` holds: where the time went, classes, means and files."""
    console = SafeConsole()
    for name, result in summary["sets"].items():
        if result["spans"]:
            print_spans(result["spans"])
        if "classes" in result:
            title, classes = "classes", result["classes"]
            if len(classes) > MOST_CLASSES:
                title = f"the {MOST_CLASSES} of {len(classes)} classes with the lowest f1"
                classes = sorted(classes, key=lambda row: (row["f1"] is None, row["f1"] or 0.0))
            rows: list[list[str]] = []
            for row in classes[:MOST_CLASSES]:
                shares = (row[key] for key in SHARES)
                cells = ("" if value is None else f"{value:.4f}" for value in shares)
                rows.append([row["name"], str(row["count"]), *cells])
            print_table(title, ["class"], ["count", *SHARES], rows)
        speed = f"{result['wall_s']:.1f} s, {result['records_per_s']:,.0f} records/s"
        means = "  ".join(f"{key} {value:.4f}" for key, value in result["means"].items())
        data = result["data"]
        where = data if isinstance(data, str) else block_words(data)
        evaluated = f"evaluated: {result['records']} records of {where} in {speed}"
        console.print(f"{evaluated}\n{name} {means}", soft_wrap=True)
    files = ", ".join(["evaluation.json", *summary["files"]])
    results = f"weights: {summary['weights_file']}\nresults: {output} ({files})"
    console.print(results, soft_wrap=True)


if __name__ == "__main__":  # a rank
    begin_rank(sys.argv[1])
    from framework.cli.run_ranks import run_rank

    run_rank(sys.argv[1], evaluate_here)
