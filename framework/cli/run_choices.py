"""What sets runs apart: the options that were typed, and else those of the configuration."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from framework.system.run_dir import shown, words

# Begin the overrides that only say where and how a run starts.
NOT_CHOICES = ("hydra.", "hydra/", "resume", "allow_targets")
OURS = "framework."
UNKNOWN = "default"  # of a key that was not typed and whose value is not recorded


class ConfiguredRun(Protocol):
    """A run that was read from its files: its options as typed, and all of them by dotted names."""

    @property
    def choices(self) -> Mapping[str, str]: ...

    @property
    def config(self) -> Mapping[str, Any]: ...


def typed_choices(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the overrides that ``run.json`` records, by key."""
    choices: dict[str, str] = {}
    for word in words(facts.get("overrides")):
        key, sign, value = word.lstrip("+~").partition("=")
        if sign and not key.startswith(NOT_CHOICES):
            choices[shown(key)] = shown(value)
    return choices


def varying(runs: Sequence[ConfiguredRun]) -> list[str]:
    """Return the keys whose choice differs between the runs."""
    keys = dict.fromkeys(key for run in runs for key in run.choices)
    return [key for key in keys if len({chosen(run, key) for run in runs}) > 1]


def chosen(run: ConfiguredRun, key: str) -> str:
    """Return the value of ``key`` as typed, else from the configuration.

    A target of ours is called by its module, which is a choice, and any other by its class.
    """
    if key in run.choices:
        return run.choices[key]
    for place in (f"{key}.source._target_", f"{key}._target_"):
        if place in run.config:
            target = str(run.config[place])
            *_, module, name = ["", *target.split(".")]
            return shown(module if target.startswith(OURS) else name)
    return shown(run.config.get(key, UNKNOWN))
