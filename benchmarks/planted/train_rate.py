"""Print the records per second of training, measured in this process.

python -m planted.train_rate SECONDS train|compute WORDS...    # words of 'paceline train'
"""

import os
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import torch

from framework.cli.arguments import Grant
from framework.cli.hydra_app import composed
from framework.commands.diagnose.measure_parts import Setting
from framework.commands.diagnose.measure_run import measured_here
from framework.measure.host import threads_per_rank


def train_rate(seconds: float, part: str, words: list[str]) -> float:
    """Return the rate of training, or of ``compute``: training that repeats one batch."""
    torch.set_num_threads(threads_per_rank())
    setting = Setting(*composed([*words, "verify=off"], Grant(frozenset({"allow_targets"}), "")))
    if setting.config["parallel"].get("num_processes", 1) > 1:
        return rate_of_ranks(setting, seconds)
    with closing(setting.probe()) as probe:
        if part == "compute":
            return probe.compute(seconds).records_per_s
        return probe.train(seconds).records_per_s


def rate_of_ranks(setting: Setting, seconds: float) -> float:
    """Return the rate of training with several ranks."""
    with tempfile.TemporaryDirectory() as folder:
        facts = measured_here(setting.config, setting.allowed, Path(folder), seconds)
    assert facts is not None
    return setting.config["batch_size"] / facts.step_s


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    print(train_rate(float(sys.argv[1]), sys.argv[2], sys.argv[3:]))
