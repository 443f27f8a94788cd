"""Whatever replaces a part of a saved state, the run is refused with K or continues as before."""

import copy
import math
from contextlib import closing

import pytest
import torch

from framework.config.assemble import assemble
from framework.config.resume import restore
from framework.config.training_parts import training_parts
from framework.errors import CheckpointError
from framework.train.trainer import Trainer
from tests.cli.command import config_of
from tests.config.assembled import SYNTHETIC

OTHERS = {
    "nothing": lambda _: None,
    "a text": lambda _: "x",
    "a list": lambda _: [1],
    "a dict": lambda _: {"a": 1},
    "a negative number": lambda _: -1,
    "NaN": lambda _: math.nan,
    "a huge number": lambda _: 1 << 70,
    "a tensor of another shape": lambda _: torch.zeros(3, 1, 2),
    "another dtype": lambda part: part.to(torch.complex64) if hasattr(part, "to") else True,
    "a missing key": None,
}
QUICK = ("nothing", "a list", "a missing key")
# A run that has ended, and a parameter that nothing has used.
SOUND = (("a text", ("ended",)), ("a missing key", ("optimizer", "state", 0)))
MANY = ("model", "average", "learned", "state", "order")  # parts that are all alike
WORDS = (*SYNTHETIC, "model.width=2", "batch_size=8", "limit=64", "loader=plain")
RICH = ("ema_decay=0.9", "optim=adamw", "accumulate=2")
CHOICES = {"one_cycle": RICH, "plateau": ("optim=sgd",), "constant": ("optim=decoupled_sgd",)}


def places(value, path=()):
    """Yield where each part of a state is. Of parts that are all alike, only one counts."""
    if path:
        yield path
    inner = ()
    if isinstance(value, dict):
        inner = list(value.items())[: 1 if path and path[-1] in MANY else None]
    elif isinstance(value, list):
        inner = enumerate(value)
    for name, part in inner:
        yield from places(part, (*path, name))


def changed(state, path, make):
    """Return a state in which ``make`` has replaced a part, or from which it is removed."""
    state = copy.deepcopy(state)
    part = state
    for name in path[:-1]:
        part = part[name]
    if make is None:
        del part[path[-1]]
    else:
        part[path[-1]] = make(part[path[-1]])
    return state


class Continued:
    """A run that can be continued from changed states.

    Attributes:
        assembly: Its data and ranks.
        state: What it has saved after two steps.
        weights: Its weights after four steps.
    """

    def __init__(self, assembly):
        self.assembly = assembly
        trainer = Trainer(training_parts(assembly, stop=lambda: trainer.progress.step == 2))
        trainer.fit()
        facts = {"learned": assembly.learns, "validation": assembly.validates, "init": None}
        self.state = {**trainer.state_dict(), **facts, "ends": assembly.ends}
        self.weights = self.train(self.state)

    def train(self, state):
        """Continue from a state, and return the weights in the end."""
        trainer = Trainer(training_parts(self.assembly))
        restore(trainer, self.assembly, copy.deepcopy(state))
        trainer.fit()
        return torch.cat([own.flatten().double() for own in trainer.parts.model.parameters()])

    def fault(self, path, make):
        """Return what is wrong with the way in which a changed state is taken."""
        try:
            weights = self.train(changed(self.state, path, make))
        except CheckpointError:
            return ""
        except Exception as error:  # noqa: BLE001  # whatever it is, it is a fault
            return f"{path}: {error!r}"
        return "" if torch.equal(weights, self.weights) else f"{path}: other weights"


def slow(name):
    return pytest.param(name, marks=pytest.mark.slow, id=name)


@pytest.fixture(scope="module", params=["one_cycle", slow("plateau"), slow("constant")])
def continued(request):
    config = config_of(*WORDS, f"schedule={request.param}", "max_steps=4", *CHOICES[request.param])
    config["resume"] = {"run": "RUN", "auto": False, "allow": []}
    with closing(assemble(config, ())) as assembly:
        yield Continued(assembly)


@pytest.mark.parametrize(
    "other", [*QUICK, *(slow(other) for other in OTHERS if other not in QUICK)]
)
def test_a_changed_part_of_a_state_is_refused_or_without_effect(continued, other):
    paths = [path for path in places(continued.state) if (other, path) not in SOUND]
    assert [fault for path in paths if (fault := continued.fault(path, OTHERS[other]))] == []
