"""``paceline new NAME``: a project that trains at once, to change into one's own."""

import os
import re
import shlex
from dataclasses import dataclass
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path

from framework.cli.outcome import RunOutcome, option, run_options
from framework.cli.trusted_folders import NO_PARTS
from framework.config.targets import ROOT
from framework.errors import ConfigError, say
from framework.system.durable import write_text

PYTHON = '''"""A model, a Dataset and an objective. Each may be replaced by one of yours."""

import torch
from torch import nn

from paceline import Outcome


class Waves(torch.utils.data.Dataset):
    """Noisy sines of 64 values, and their frequencies from 1 to 8."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.frequency = 1 + 7 * torch.rand(count, generator=generator)
        wave = torch.sin(self.frequency[:, None] * torch.linspace(0, 6.28, 64))
        self.wave = wave + 0.1 * torch.randn(count, 64, generator=generator)

    def __len__(self):
        return len(self.wave)

    def __getitem__(self, index):
        return {"wave": self.wave[index], "frequency": self.frequency[index]}


class Net(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 1), nn.Flatten(0))


class LogError:
    """The squared error of the logarithm, and the share of guesses within 10 %."""

    def __call__(self, model, batch):
        error = model(batch["wave"]) - batch["frequency"].log()
        return Outcome(error.square().mean(), {"within_10_percent": error.abs() < 0.0953})

    def better(self, new, old):
        return new["loss"] < old["loss"]
'''
RECIPE = """# @package _global_
# guess the frequency of noisy sines
defaults:
  - override /data: dataset
  - override /model: null  # described below, as the objective is
  - override /objective: null
  - override /optim: adamw
  - override /augment: none

vars: {width: 256}
data:
  train: {_target_: MODULE.Waves, count: 4000, seed: 0}
  val: {_target_: MODULE.Waves, count: 500, seed: 1}
model: {_target_: MODULE.Net, width: "${vars.width}"}
objective: {_target_: MODULE.LogError}
optim: {lr: 0.003}
epochs: 15
workers: {num: 0}  # the records are in memory
"""
TEST = """import torch
from MODULE import LogError, Net, Waves


def test_the_net_learns():
    torch.manual_seed(0)
    batch, net = Waves(256, seed=0)[:], Net(width=32)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        losses.append(LogError()(net, batch).loss)
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] / 2
"""
README = """# NAME

    paceline trust yes=true         # once: commands in this folder may call MODULE.py
    paceline train experiment=NAME  # try vars.width=64 'tags=[wide]', too
    paceline runs
    pytest

`MODULE.py` is what is trained, `recipes/NAME.yaml` says how.
"""


@dataclass(frozen=True)
class NewOptions:
    """Write a project that trains at once: a model, a Dataset, an objective, a recipe, a test."""

    name: str = option(
        about="the folder to make; 'paceline new NAME' is short for name=NAME",
        means="the name of a folder",
    )


def main(arguments: list[str]) -> int:
    """Run the command. A word that is not an override is the name of the project."""
    return run_options("new", arguments, NewOptions, _new, plain="name")


def _new(options: NewOptions, _: Path) -> RunOutcome:
    folder = Path(options.name)
    name = folder.name
    module = name.replace("-", "_")
    where = f"name = {options.name}"
    is_name = re.fullmatch(r"[A-Za-z]\w*(-\w+)*", name, re.ASCII) and not iskeyword(name)
    if not is_name or NO_PARTS.fullmatch(module):
        fix = "give another: letters, digits, - and _, with a letter first"
        raise ConfigError(212, where, "cannot be the name of a module that trains", fix)
    if os.path.lexists(folder):
        raise ConfigError(212, where, "exists", "choose another name, or remove it")
    if not folder.parent.is_dir():
        fix = "make the folder, or choose another place"
        raise ConfigError(212, where, f"{folder.parent} does not exist", fix)
    if find_spec(module) is not None or (ROOT / "recipes" / f"{name}.yaml").exists():
        what = "is the name of an installed package, or of a recipe of ours"
        raise ConfigError(212, where, what, "choose another name")
    words = {"MODULE": module, "NAME": name}
    files = {
        f"{module}.py": PYTHON,
        f"recipes/{name}.yaml": RECIPE,
        f"test_{module}.py": TEST,
        "README.md": README,
    }
    for place, text in files.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        write_text(folder / place, re.sub("MODULE|NAME", lambda match: words[match[0]], text))
    say(f"made {folder}: {', '.join(files)}. To train it, and to test it:")
    enter = f"cd {shlex.quote(str(folder))}"
    say(f"  {enter} && paceline trust yes=true && paceline train experiment={name}")
    say("  pytest")
    return RunOutcome(0, "made")
