"""What a finished run measured, as a forecast needs it."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework.config.saved_config import read_config, recorded_ranks
from framework.config.targets import Config
from framework.contracts.records import Manifest
from framework.contracts.span import ALL_SPANS, IDLE, waiting_share
from framework.errors import CheckpointError, ConfigError
from framework.measure.statistics import median, spread_share


@dataclass(frozen=True)
class MeasuredRun:
    """Figures of a run's steps.

    Attributes:
        ranks: Processes, all on one host.
        cores_per_rank: That each could use.
        rank_batch: Records of a rank in a step.
        step_s: Seconds of a step.
        wait_share: The share of a step in which it waits for data.
        spread: Of ``step_s``, as a share.
        gpu: The GPU's name; None: it computed on cores.
        memory_bytes: Of a rank with its workers, at most.
        state_bytes: Of a saved state.
        weight_bytes: Of saved weights, which are as many bytes as the gradients.
        num_records: Of the whole training set.
        epoch_records: Of an epoch, as ``limit``, ``select``, ``fold`` and ``order`` leave them.
        last: What becomes of the last records of an epoch: ``short``, ``drop`` or ``wrap``.
        store_bytes: Of the training set; None if it is no file.
        reads_ahead: Whether records are read while a step computes.
        validate_s: Seconds of a validation; None if there was none.
        keep: Saved states that are kept.
        epochs: That the configuration asks for.
        max_steps: The same in steps, or None.
        validate_every: Steps between validations; None: one at the end of each epoch.
    """

    ranks: int
    cores_per_rank: int
    rank_batch: int
    step_s: float
    wait_share: float
    spread: float
    gpu: str | None
    memory_bytes: float
    state_bytes: int
    weight_bytes: int
    num_records: int
    epoch_records: int
    last: str
    store_bytes: int | None
    reads_ahead: bool
    validate_s: float | None
    keep: int
    epochs: int
    max_steps: int | None
    validate_every: int | None


def measured_run(path: Path, cores: int | None = None) -> MeasuredRun:
    """Return what the run in a directory measured.

    Args:
        path: The directory.
        cores: That all its ranks could use together, if that was fewer than the machine has.

    Raises:
        CheckpointError: K120 for anything but the directory of a run.
        ConfigError: C398 for a run without figures, or of several hosts.
    """
    config, manifest = read_config(path)
    facts = _json(path, "run.json")
    summary = _json(path, "summary.json")
    lines = _lines(path, summary)
    reports = _reports(lines)
    if not summary.get("spans") or len(reports) < 2:
        what = "holds too few reports of training to forecast from"
        raise ConfigError(398, f"run = {path}", what, "give a run with clock=true and more steps")
    num_hosts = config["parallel"].get("num_nodes", 1)
    if num_hosts > 1:
        what = f"was trained on {num_hosts} hosts, and its steps hold their network"
        raise ConfigError(398, f"run = {path}", what, "give runs of one host, and network=...")
    ranks = recorded_ranks(facts) or config["parallel"].get("num_processes", 1)
    batch_size = int(summary["effective"]["batch_size"])
    rates = [report["records_per_s"] for report in reports[1:]]
    gpus = facts["machine"]["gpus"]
    is_gpu = bool(gpus) and config["device"] != "cpu"
    checkpoints = path / "checkpoints"
    return MeasuredRun(
        ranks=ranks,
        cores_per_rank=max(1, (cores or facts["machine"]["num_cores"]) // ranks),
        rank_batch=max(1, batch_size // ranks),
        step_s=batch_size / median(rates),
        wait_share=median([_wait_share(report) for report in reports[1:]]),
        spread=spread_share(rates),
        gpu=gpus[0] if is_gpu else None,
        memory_bytes=summary["usage"].get("peak_tree_rss_bytes", summary["peak_rss_bytes"]),
        state_bytes=_largest(checkpoints, "step-*.pt"),
        weight_bytes=_largest(checkpoints, "last.pt"),
        num_records=manifest.num_records,
        epoch_records=_epoch_records(path, summary, config, manifest),
        last=config["last"],
        store_bytes=_store_bytes(config),
        reads_ahead=_reads_ahead(config, manifest),
        validate_s=_validate_s(summary, lines),
        keep=config["checkpoint"]["keep"],
        epochs=config["epochs"],
        max_steps=config["max_steps"],
        validate_every=config["validate_every"],
    )


def _json(path: Path, name: str) -> dict[str, Any]:
    try:
        return json.loads((path / name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        what = f"its {name} cannot be read"
        fix = "give the directory of a run that has finished"
        raise CheckpointError(120, f"run = {path}", what, fix) from error


def _lines(path: Path, summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the lines of ``metrics.jsonl`` from that part of a resumed run which ended last.

    The summary describes only this part. Other parts may have had other ranks.
    """
    try:
        text = (path / "metrics.jsonl").read_text(encoding="utf-8")
    except OSError:
        return []
    start = summary["steps"] - summary["run_steps"]
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if line["step"] > start]


def _reports(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the reports of training, without the short one at an epoch's end."""
    return [line for line in lines if line["split"] == "train" and "forward_s" in line]


def _wait_share(report: Mapping[str, Any]) -> float:
    names = [name for name in (IDLE, *ALL_SPANS) if f"{name}_s" in report]
    return waiting_share({name: report[f"{name}_s"] for name in names}) or 0.0


def _largest(folder: Path, pattern: str) -> int:
    return max((path.stat().st_size for path in folder.glob(pattern)), default=0)


def _epoch_records(
    path: Path, summary: Mapping[str, Any], config: Config, manifest: Manifest
) -> int:
    """Return the records of an epoch. ConfigError C398 if an older version did not record them."""
    recorded = summary.get("records_per_epoch")
    if recorded is not None:
        return int(recorded)
    for key in ("limit", "select", "fold"):
        if config[key] is not None:
            what = f"was trained with {key}, and does not say how many records an epoch had"
            raise ConfigError(398, f"run = {path}", what, "give a run of this version")
    return manifest.num_records


def _store_bytes(config: Config) -> int | None:
    """Return the size of the training store, or None if the data is no file or folder."""
    path = config["data"].get("train")
    if not isinstance(path, str):
        return None
    if os.path.isfile(path):
        return os.path.getsize(path)
    if not os.path.isdir(path):
        return None
    return sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())


def _reads_ahead(config: Config, manifest: Manifest) -> bool:
    """Return whether a loader or workers read while a step computes."""
    loader = str(config["loader"]["_target_"])
    decodes = any(field.encoding == "image" for field in manifest.fields.values())
    workers = config["workers"]["num"]
    return ".plain." not in loader or bool(workers) or (workers is None and decodes)


def _validate_s(summary: Mapping[str, Any], lines: list[dict[str, Any]]) -> float | None:
    """Return the mean seconds of a validation of all sets; None if there was none."""
    steps = {line["step"] for line in lines if line["split"].startswith("val")}
    if not steps or not summary.get("validate_s"):
        return None
    return summary["validate_s"] / len(steps)
