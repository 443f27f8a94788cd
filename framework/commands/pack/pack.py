"""``paceline pack``: items into one store."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from framework.cli.allowed import Grant, allowed_targets, granted
from framework.cli.hydra_app import resolved, run_app
from framework.cli.outcome import RunOutcome, told
from framework.cli.paths import SUFFIXES
from framework.config.targets import check_targets, did_you_mean
from framework.errors import EXIT_SKIPPED, ConfigError
from framework.system.stopping import reason

KEYS = ("input", "output", "pack", "workers", "advise", "allow_targets")
GO_ON = "finished jobs are kept; the same command goes on"


def main(arguments: list[str]) -> int:
    """The command. Returns the exit code."""
    return run_app("pack", arguments, partial(_job, granted(arguments)))


def _job(grant: Grant, cfg: DictConfig) -> int:
    return told(lambda _: _attempt(cfg, grant))


def _attempt(cfg: DictConfig, grant: Grant) -> RunOutcome:
    config: dict[str, Any] = resolved(cfg)
    allowed = allowed_targets(config, grant)
    check_targets(config, allowed)
    check_workers(config["workers"])
    for key in config:
        if key not in KEYS:
            raise ConfigError(
                102, key, f"no such key{did_you_mean(key, KEYS)}", "correct or remove it"
            )
    if not isinstance(config["pack"], dict):
        raise ConfigError(
            101,
            f"pack = {config['pack']}",
            "not a value it can have",
            "give its keys: pack.encode=raw, say",
        )
    if not isinstance(config["advise"], bool):
        raise ConfigError(
            101, f"advise = {config['advise']}", "not a value it can have", "give true or false"
        )
    with reason(f"stopped{{by}}: {GO_ON}"):
        return _advise(config, allowed) if config["advise"] else _pack(config, allowed)


def check_workers(workers: Any) -> None:
    """ConfigError C101."""
    if workers is not None and (
        not isinstance(workers, int) or isinstance(workers, bool) or workers < 0
    ):
        fix = "give int, at least 0, or null for one per core"
        raise ConfigError(101, f"workers = {workers}", "not a value it can have", fix)


def _output_path(config: dict[str, Any]) -> str:
    path = config["output"]["path"]
    if not isinstance(path, str) or not path.strip("/. "):
        raise ConfigError(
            101, f"output.path = {path}", "not a name for a store", "give the path of a file"
        )
    formats = {".h5": "hdf5", ".hdf5": "hdf5", ".lmdb": "lmdb"}
    named, made = (
        formats.get(Path(path.rstrip("/")).suffix),
        formats.get(SUFFIXES.get(config["output"]["_target_"], "")),
    )
    if named and made and named != made:
        raise ConfigError(
            101,
            f"output.path = {path}",
            f"is named after another format than {made}",
            f"add output={named}",
        )
    return path.rstrip("/")


def _pack(config: dict[str, Any], allowed: tuple[str, ...]) -> RunOutcome:
    # loads torch: only for a configuration that is sound
    from framework.cli.progress import for_output, packing_of, show_packing  # noqa: PLC0415
    from framework.config.prepare_data import input_of, writer_of  # noqa: PLC0415

    output, path = config["output"], _output_path(config)
    source = input_of("input", config["input"], config["pack"], allowed)
    packing = packing_of(source, config["pack"], writer_of("output", output, allowed), path)
    layout = {key: value for key, value in output.items() if key != "path"}
    packing = replace(for_output(packing, output["_target_"]), layout=layout)
    packed = show_packing(packing, config["workers"])
    if packed.bad:
        return RunOutcome(
            EXIT_SKIPPED,
            f"{len(packed.bad)} items were skipped: {packing.path}.bad.jsonl lists them",
        )
    return RunOutcome(0, "finished")


def _advise(config: dict[str, Any], allowed: tuple[str, ...]) -> RunOutcome:
    from framework.commands.pack.encoding_advice import show_advice  # noqa: PLC0415
    from framework.config.prepare_data import input_of, writer_of  # noqa: PLC0415

    output = config["output"]
    words = [str(word) for word in OmegaConf.to_container(HydraConfig.get().overrides.task) or []]
    source = input_of("input", config["input"], config["pack"], allowed)
    show_advice(
        source, config["pack"], writer_of("output", output, allowed), _output_path(config), words
    )
    return RunOutcome(0, "advised")
