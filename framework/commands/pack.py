"""``paceline pack``: pack items into one store."""

from pathlib import Path

from omegaconf import DictConfig

from framework.cli.arguments import Grant, granted
from framework.cli.hydra_app import checked_options, run_app
from framework.cli.outcome import RunOutcome, run_action
from framework.cli.tables import plural
from framework.config.schema import Rule
from framework.config.targets import SUFFIXES
from framework.errors import EXIT_SKIPPED, ConfigError
from framework.system.stopping import message_if_stopped

RULES = {"pack": Rule(dict), "workers": Rule(int | None, 0)}
FORMATS = {".h5": "hdf5", ".hdf5": "hdf5", ".lmdb": "lmdb"}


def main(arguments: list[str]) -> int:
    grant = granted(arguments)
    return run_app("pack", arguments, lambda cfg: run_action(lambda _: _run(cfg, grant)))


def _run(cfg: DictConfig, grant: Grant) -> RunOutcome:
    config, allowed = checked_options(cfg, grant, RULES, ("input", "output"))
    path = config["output"]["path"]
    where = f"output.path = {path}"
    if not isinstance(path, str) or not path.strip("/. "):
        raise ConfigError(101, where, "does not name a store", "give the path of a file")
    path = path.rstrip("/")
    named = FORMATS.get(Path(path).suffix)
    made = FORMATS.get(SUFFIXES.get(config["output"]["_target_"], ""))
    if named and made and named != made:
        what = f"is named after another format than {made}"
        raise ConfigError(101, where, what, f"add output={named}")
    with message_if_stopped("stopped{by}: finished jobs are kept; the same command continues"):
        # These load torch, which a wrong key should not have to wait for.
        from framework.cli.run_ranks import print_notes, show_packing  # noqa: PLC0415
        from framework.config import prepare_data  # noqa: PLC0415

        source = prepare_data.input_of("input", config["input"], config["pack"], allowed)
        make_writer = prepare_data.writer_of("output", config["output"], allowed)
        packing = prepare_data.packing_of(source, config["pack"], make_writer, path, config)
        print_notes(source)
        print_notes(packing.split)
        packed = show_packing(packing, config["workers"])
    if not packed.bad:
        return RunOutcome(0, "finished")
    skipped = f"{plural(len(packed.bad), 'item')} skipped: {packing.path}.bad.jsonl lists them"
    return RunOutcome(EXIT_SKIPPED, skipped)
