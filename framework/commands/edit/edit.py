"""``paceline edit STORE append=... | drop=... | relabel=... | add=...``: make a new version."""

from typing import Any

from omegaconf import DictConfig

from framework.cli.arguments import with_store
from framework.cli.hydra_app import resolved, run_app
from framework.cli.outcome import RunOutcome, told
from framework.config.rule import Rule, check_values
from framework.errors import ConfigError, printable
from framework.system.stopping import message_if_stopped

KINDS = ("append", "drop", "relabel", "add")
RULES = {"store": Rule(str, means="a path"), **dict.fromkeys(KINDS, Rule(str | None))}


def main(arguments: list[str]) -> int:
    """Run the command. A word that is not an override is the path of the store."""
    arguments = with_store(arguments, "edit")
    return run_app("edit", arguments, lambda cfg: told(lambda _: _edit(cfg)))


def _edit(cfg: DictConfig) -> RunOutcome:
    config: dict[str, Any] = resolved(cfg)
    check_values(config, RULES)
    chosen = [kind for kind in KINDS if config[kind] is not None]
    if len(chosen) != 1:
        where = ", ".join(f"{kind} = {config[kind]}" for kind in chosen) or "paceline edit"
        fix = f"give one of {', '.join(f'{kind}=' for kind in KINDS)}"
        raise ConfigError(250, where, "must be one change", fix)
    with message_if_stopped("stopped{by}: the store is as it was"):
        return _edit_store(config["store"], chosen[0], config[chosen[0]])


def _edit_store(path: str, kind: str, value: str) -> RunOutcome:
    # This loads torch, which a wrong key should not have to wait for.
    from framework.cli.progress import progress_bar  # noqa: PLC0415
    from framework.commands.edit.write_version import edit_store  # noqa: PLC0415
    from framework.store.versions import split_version  # noqa: PLC0415

    given = split_version(path)
    if given.number is not None:
        fix = f"edit {given.path}; to go back, remove its newer layers"
        raise ConfigError(250, f"store = {path}", "names a version; edits follow the newest", fix)
    with progress_bar(path) as (_, tell):
        edit = edit_store(path, kind, value, tell)
    count = f"{edit.manifest.num_records:,} records"
    print(f"{printable(path)}: version {edit.number} has {count}: {printable(edit.words)}")
    return RunOutcome(0, "edited")
