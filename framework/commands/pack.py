"""``paceline pack``: pack items into one store."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from framework.cli.arguments import Grant, allowed_targets, granted
from framework.cli.hydra_app import run_app
from framework.cli.hydra_session import resolved
from framework.cli.outcome import RunOutcome, run_action
from framework.cli.tables import plural
from framework.config.schema import Rule, check_known, check_values
from framework.config.targets import SUFFIXES, check_targets
from framework.errors import EXIT_SKIPPED, ConfigError
from framework.system.stopping import message_if_stopped

RULES = {"pack": Rule(dict), "workers": Rule(int | None, 0)}
KEYS = ("input", "output", *RULES, "allow_targets")
FORMATS = {".h5": "hdf5", ".hdf5": "hdf5", ".lmdb": "lmdb"}


def main(arguments: list[str]) -> int:
    grant = granted(arguments)
    return run_app("pack", arguments, lambda cfg: run_action(lambda _: _run(cfg, grant)))


def _run(cfg: DictConfig, grant: Grant) -> RunOutcome:
    config: dict[str, Any] = resolved(cfg)
    allowed = allowed_targets(config, grant)
    check_targets(config, allowed)
    check_values(config, RULES)
    check_known(config, KEYS)
    with message_if_stopped("stopped{by}: finished jobs are kept; the same command continues"):
        path = _output_path(config["output"])
        # These load torch, which a wrong key should not have to wait for.
        from framework.cli.run_ranks import print_notes, show_packing  # noqa: PLC0415
        from framework.config import prepare_data  # noqa: PLC0415

        source = prepare_data.input_of("input", config["input"], config["pack"], allowed)
        make_writer = prepare_data.writer_of("output", config["output"], allowed)
        packing = prepare_data.packing_of(source, config["pack"], make_writer, path, config)
        print_notes(source)
        print_notes(packing.split)
        packed = show_packing(packing, config["workers"])
    if packed.bad:
        listing = f"{packing.path}.bad.jsonl"
        skipped = f"{plural(len(packed.bad), 'item')} skipped: {listing} lists them"
        return RunOutcome(EXIT_SKIPPED, skipped)
    return RunOutcome(0, "finished")


def _output_path(output: dict[str, Any]) -> str:
    path = output["path"]
    where = f"output.path = {path}"
    if not isinstance(path, str) or not path.strip("/. "):
        raise ConfigError(101, where, "does not name a store", "give the path of a file")
    path = path.rstrip("/")
    named = FORMATS.get(Path(path).suffix)
    made = FORMATS.get(SUFFIXES.get(output["_target_"], ""))
    if named and made and named != made:
        what = f"is named after another format than {made}"
        raise ConfigError(101, where, what, f"add output={named}")
    return path
