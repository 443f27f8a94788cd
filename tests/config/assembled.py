"""The parts of a run on synthetic data, built from the words of a command line."""

from contextlib import closing

from framework.config.assemble import Assembly
from framework.config.training_parts import training_parts
from framework.train.trainer import Parts
from tests.cli.command import config_of

SYNTHETIC = ("data=synthetic", "prepare=null", "workers.num=0")


def assembled(*words: str) -> closing[Assembly]:
    """Return a context with the parts that deliver data, without validation by default."""
    return closing(Assembly(config_of(*SYNTHETIC, "data.val=null", *words), ()))


def parts_of(*words: str) -> tuple[Assembly, Parts]:
    """Return the parts of a run, whose data is closed."""
    with assembled(*words) as assembly:
        return assembly, training_parts(assembly)
