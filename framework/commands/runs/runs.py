"""``paceline runs [FOLDER]``: list runs, or send what a tracking server missed."""

from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from framework.cli.arguments import option, plain_words, quoted
from framework.cli.hydra_app import resolved, run_app
from framework.cli.outcome import RunOutcome, told
from framework.commands.runs.choose_runs import chosen_runs
from framework.commands.runs.print_runs import print_json, print_runs
from framework.commands.runs.run_listing import listed_runs
from framework.config.rule import Rule, check_values
from framework.errors import ConfigError

ACTIONS = ("list", "send")
RULES = {
    "action": Rule(str, choices=ACTIONS),
    "folder": Rule(str, means="a path"),
    "runs": Rule(list[str], means="a list of paths"),
    "where": Rule(str | None, means="a comparison, as in 'accuracy > 0.9'"),
    "sort": Rule(str | None, means="a key"),
    "json": Rule(bool),
}


def main(arguments: list[str]) -> int:
    """Run the command. Words that are not overrides are an action, and paths."""
    words = ["json=true" if word == "--json" else word for word in arguments]
    if words[:1] != ["-sc"]:
        words = _with_keys(words)
    return run_app("runs", words, lambda cfg: told(partial(_runs, cfg)))


def _with_keys(words: list[str]) -> list[str]:
    """Return the words with ``action=``, ``folder=`` and ``runs=`` for the plain ones."""
    plain = plain_words(words)
    keys = [word for word in words if word not in plain]
    action = option(keys, "action")
    if action is None and plain and plain[0] in ACTIONS:
        action = plain.pop(0)
        keys.append(f"action={action}")
    if not plain:
        return keys
    key = "folder" if action in (None, "list") else "runs"
    if option(keys, key) is not None:
        raise ConfigError(100, " ".join(plain), f"stands beside {key}=", "give one or the other")
    if key == "runs":
        return [*keys, f"runs=[{','.join(map(quoted, plain))}]"]
    if len(plain) > 1:
        raise ConfigError(100, " ".join(plain), "names more than one folder", "give one")
    return [*keys, f"folder={quoted(plain[0])}"]


def _runs(cfg: DictConfig, run_dir: Path) -> RunOutcome:
    config: dict[str, Any] = resolved(cfg)
    check_values(config, RULES)
    _check_together(config)
    if config["action"] == "send":
        from framework.commands.runs.send_runs import send  # noqa: PLC0415  # loads torch

        send([Path(name) for name in config["runs"]])
        return RunOutcome(0, "sent")
    folder = Path(config["folder"])
    runs = chosen_runs(listed_runs(folder), config["where"], config["sort"])
    if config["json"]:
        print_json(runs)
    else:
        print_runs(runs, folder)
    return RunOutcome(0, "listed")


def _check_together(config: dict[str, Any]) -> None:
    """Raise ConfigError C371 or C372 for keys that the action needs or does not read."""
    action, runs = config["action"], config["runs"]
    if action == "list" and runs:
        fix = "list the runs below a folder: paceline runs FOLDER"
        raise ConfigError(372, f"runs = {runs}"[:200], "is not read by action=list", fix)
    if action == "send" and not runs:
        fix = "name them: paceline runs send RUN ..."
        raise ConfigError(371, "runs = []", "names no run to send", fix)
    for key in ("where", "sort", "json"):
        if config[key] and action == "send":
            where = f"{key} = {config[key]}"[:200]
            raise ConfigError(372, where, "is not read by action=send", "leave it out")
