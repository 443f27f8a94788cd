"""``paceline replay RUN step=N``: a step of a run again, with its records, losses and gradients."""

import json
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from framework.cli.allowed import Grant, allowed_targets, granted
from framework.cli.arguments import with_store
from framework.cli.hydra_app import resolved, run_app
from framework.cli.outcome import RunOutcome, told
from framework.config.rule import Rule, check_known, check_values
from framework.system.stopping import message_if_stopped

if TYPE_CHECKING:
    from framework.commands.train.run_ranks import RankedJob

RULES = {
    "run": Rule(str, means="the directory of a run"),
    "step": Rule(str | int, means="a number, max:METRIC, min:METRIC or nan", number=340),
}
KEYS = (*RULES, "allow_targets")


def main(arguments: list[str]) -> int:
    """Run the command. A word that is not an override is the directory of the run."""
    grant = granted(arguments)
    # Hydra would read the number that is none
    words = [re.sub(r"^step=nan$", 'step="nan"', word) for word in arguments]
    words = with_store(words, "replay", "run")
    return run_app("replay", words, lambda cfg: told(partial(_replay, cfg, grant)))


def _replay(cfg: DictConfig, grant: Grant, folder: Path) -> RunOutcome:
    config: dict[str, Any] = resolved(cfg)
    allowed = allowed_targets(config, grant)
    check_known(config, KEYS)
    check_values(config, RULES)
    run_dir = Path(config["run"])
    with message_if_stopped("stopped{by}: nothing was written"):
        # These load torch, which a wrong key should not have to wait for.
        from framework.commands.replay.choose_step import StepSearch, choose_step  # noqa: PLC0415
        from framework.commands.replay.print_replay import print_replay  # noqa: PLC0415
        from framework.commands.replay.replay_rank import PLACE, replay_here  # noqa: PLC0415
        from framework.commands.replay.run_history import read_history  # noqa: PLC0415
        from framework.commands.replay.step_again import ranks_at  # noqa: PLC0415
        from framework.commands.replay.write_replay import RESULT  # noqa: PLC0415
        from framework.commands.train.run_ranks import RankedJob  # noqa: PLC0415
        from framework.config.saved_config import read_config  # noqa: PLC0415

        read_config(run_dir)
        asked = {"run": str(run_dir), "step": str(config["step"])}
        history = read_history(run_dir)
        chosen = choose_step(asked["step"], history)
        step = chosen.first if isinstance(chosen, StepSearch) else chosen
        count, parallel = ranks_at(history, step)
        job = RankedJob(
            {"replay": asked, "parallel": parallel, "debug": None}, str(folder), allowed
        )
        outcome = job.outcome(_in_ranks if count else replay_here)
        place = folder / PLACE
        if outcome.code == 0:
            written = Path(json.loads(place.read_text(encoding="utf-8")))
            print_replay(written, RESULT)
        place.unlink(missing_ok=True)
    return outcome


def _in_ranks(job: "RankedJob") -> RunOutcome:
    from framework.commands.train.run_ranks import launch_ranks  # noqa: PLC0415

    return launch_ranks(job, module="framework.commands.replay.replay_rank")
