"""``paceline evaluate run=DIR``: the validation of a run again, on any data."""

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from framework.cli.allowed import Grant, allowed_targets, granted
from framework.cli.arguments import with_output, with_store
from framework.cli.hydra_app import resolved, run_app
from framework.cli.outcome import RunOutcome, told
from framework.config.rule import Rule, check_known, check_values
from framework.config.targets import check_targets
from framework.errors import ConfigError, ResourceError
from framework.system.stopping import message_if_stopped

if TYPE_CHECKING:
    from framework.commands.train.run_ranks import RankedJob

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
        from framework.commands.evaluate.evaluate_rank import evaluate_here  # noqa: PLC0415
        from framework.commands.evaluate.print_evaluation import print_evaluation  # noqa: PLC0415
        from framework.commands.train.run_ranks import RankedJob  # noqa: PLC0415
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
        _make_folder(output)
        job = RankedJob(
            {"evaluation": evaluation, "parallel": parallel, "debug": None}, str(output), allowed
        )
        is_rank = "RANK" in os.environ
        starts_ranks = "num_processes" in parallel and not is_rank
        outcome = job.outcome(_in_ranks if starts_ranks else evaluate_here)
    if outcome.code == 0 and os.environ.get("RANK", "0") == "0":
        print_evaluation(output)
    if outcome.code and is_new:
        with suppress(OSError):  # nothing is in it
            output.rmdir()
    return outcome


def _make_folder(path: Path) -> None:
    """Make the folder of the results. ResourceError R101 if that is impossible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"cannot be made: {error.strerror}"
        raise ResourceError(101, f"output = {path}", what, "choose another folder") from error


def _in_ranks(job: "RankedJob") -> RunOutcome:
    from framework.commands.train.run_ranks import launch_ranks  # noqa: PLC0415

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
