"""The hosts of a forecast: how many, and what each of them has."""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from framework.config.targets import did_you_mean
from framework.errors import ConfigError

NUMBER = 399
UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([kMGT]?)(B?)(/s|it/s|bit/s)?")


@dataclass(frozen=True)
class PlannedHosts:
    """Hosts that are alike.

    Attributes:
        hosts: Their number.
        ranks_per_host: Processes on each, one replica of the model each.
        cores: Of each.
        memory: Bytes of memory of each.
        disk: Bytes per second that each reads from its disk; None: the data stays in memory.
        network: Bytes per second that each sends to the others; None: unknown.
        gpu: The name of the GPU of each rank; None: it computes on cores.
    """

    hosts: int = 1
    ranks_per_host: int = 1
    cores: int = 1
    memory: int = 0
    disk: float | None = None
    network: float | None = None
    gpu: str | None = None

    @property
    def ranks(self) -> int:
        return self.hosts * self.ranks_per_host

    @property
    def cores_per_rank(self) -> int:
        return max(1, self.cores // self.ranks_per_host)


KEYS = tuple(field.name for field in fields(PlannedHosts))
OPTIONAL = ("cores", "memory", "disk", "network", "gpu")


def planned_hosts(own: dict[str, str], path: str | None) -> PlannedHosts:
    """Return the hosts that words and a YAML file describe. Words win.

    A host has the cores and the memory of this one unless they are given. ``null`` gives nothing.

    Raises:
        ConfigError: C399 for a wrong key or value.
    """
    from framework.measure.host import num_cores, total_memory_bytes  # noqa: PLC0415  # loads torch

    texts: dict[str, Any] = {**(_read(path) if path is not None else {}), **own}
    values: dict[str, Any] = {"cores": num_cores(), "memory": total_memory_bytes()}
    for key, value in texts.items():
        is_null = value is None or value == "null"
        if not (is_null and key in OPTIONAL):
            values[key] = _value(key, str(value).strip("'\""))
    values["memory"] = int(values["memory"])
    return PlannedHosts(**values)


def _value(key: str, text: str) -> str | float:
    """Return the value of a key. ConfigError C399 if it is wrong."""
    if key == "gpu":
        return text
    if key in ("memory", "disk", "network"):
        return amount(key, text)
    if text.isdecimal() and 1 <= int(text) <= 1_000_000:
        return int(text)
    what = "must be a whole number from 1 to 1000000"
    raise ConfigError(NUMBER, f"{key} = {text}", what, "correct it")


def amount(key: str, text: str) -> float:
    """Return bytes, or bytes per second. A network's rate is in bits per second, as it is sold.

    Raises:
        ConfigError: C399 for a text that is no amount.
    """
    match = AMOUNT.fullmatch(text)
    if match is None or not float(match[1]):
        example = {"memory": "64G", "disk": "500M/s", "network": "10G"}[key]
        raise ConfigError(
            NUMBER, f"{key} = {text}", f"must be an amount, as in {example}", "correct it"
        )
    value = float(match[1]) * UNITS[match[2]]
    if key == "network" and not match[3]:
        value /= 8
    return value


def _read(path: str) -> dict[str, Any]:
    where = f"cluster = {path}"
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        what = f"cannot be read ({' '.join(str(error).split())[:200]})"
        raise ConfigError(NUMBER, where, what, "give a YAML file of keys and values") from error
    if not isinstance(values, dict):
        raise ConfigError(NUMBER, where, "holds no keys", f"write, say, '{KEYS[0]}: 2'")
    for key in values:
        if key not in KEYS:
            what = f"no such key{did_you_mean(str(key), KEYS)}"
            raise ConfigError(NUMBER, f"{where}: {key}", what, f"choose {', '.join(KEYS)}")
    return values
