"""Misspell a letter of any key, group, choice or option: one line must have the right word."""

import io
import random
import re
import string
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache

from omegaconf import OmegaConf

from framework.cli import explain
from framework.config.targets import CONF
from framework.main import COMMANDS, run
from tests.faults.lanes import Row, repeat

MOST_MISSED = 0.02
MISSED = "another word: "
OF_TORCH = (
    *("framework.config.assemble", "framework.config.build", "framework.config.prepare_data"),
    *("framework.cli.run_ranks", "framework.run"),
)  # these modules import torch
OPEN = ("data", "prepare", "sink", "vars")  # blocks to which anything may be added with +
OPTIONS = ("--multirun", "--config-dir", "--help", "--cfg", "--resolve")


def rows(times: int, seed: int) -> Iterator[Row]:
    where = "a letter wrong in a key, group, choice, recipe, option"
    fault = f"{where}: one line, exit code 2, the right word"
    row = repeat(fault, is_named, times, seed)
    missed = [line for line in row.failed if MISSED in line]
    share = f"the right word in {1 - len(missed) / times:.1%}"
    if len(missed) > MOST_MISSED * times:
        yield row._replace(note=share)
        return
    print(*missed, sep="\n")
    yield row._replace(failed=[line for line in row.failed if MISSED not in line], note=share)


def is_named(draw: random.Random) -> str:
    """Misspell one letter. Return what is wrong with the answer, or ""."""
    ways = (wrong_key, wrong_key, wrong_key, wrong_group, wrong_choice, wrong_choice, wrong_word)
    words, right = draw.choice(ways)(draw)
    code, err = refused(words)
    lines = err.splitlines()
    if code != 2 or len(lines) != 1 or not lines[0].startswith("error[C"):
        return f"{' '.join(words)}: exit code {code}: {err[:300]!r}"
    guesses = re.findall(r"did you mean (.*?)\?", err)
    if guesses and any(f"'{word}'" in guesses[0] for word in right):
        return ""
    return f"{MISSED}{' '.join(words)}: {right[0]}: {err[:200]}"


def refused(words: list[str]) -> tuple[int, str]:
    """Return the exit code and the errors of a command that fails if it imports torch."""
    err = io.StringIO()
    loaded = {name: sys.modules[name] for name in OF_TORCH if name in sys.modules}
    sys.modules.update(dict.fromkeys(OF_TORCH))  # what imports one of them fails
    try:
        with redirect_stderr(err), redirect_stdout(io.StringIO()):
            return run(words), err.getvalue()
    except ImportError as error:
        return -1, f"not told: {error}"
    finally:
        for name in OF_TORCH:
            del sys.modules[name]
        sys.modules.update(loaded)


def edited(word: str, known: object, draw: random.Random) -> str:
    """Return ``word`` with one letter dropped, doubled, swapped or replaced, not in ``known``."""
    for _ in range(1000):
        at = draw.choice([number for number, letter in enumerate(word) if letter.isalnum()])
        following = word[at + 1 : at + 2]
        ways = [word[:at] + word[at + 1 :], word[:at] + word[at] + word[at:]]
        ways.append(word[:at] + draw.choice(string.ascii_lowercase) + word[at + 1 :])
        if following.isalnum():
            ways.append(word[:at] + following + word[at] + word[at + 2 :])
        misspelt = draw.choice(ways)
        if misspelt and misspelt not in known and all(misspelt.split(".")):  # pyright: ignore[reportOperatorIssue]
            return misspelt
    raise AssertionError(f"{word!r} cannot be misspelt")


# ----------------------------------------------------------------------------- what can be misspelt


@cache
def groups(command: str) -> dict[str, list[str]]:
    """Return the choices of each group."""
    defaults = OmegaConf.to_container(OmegaConf.load(CONF / f"{command}.yaml")).get("defaults", [])
    names = [
        name
        for entry in defaults
        if isinstance(entry, dict)
        for name in entry
        if "override" not in name and "@" not in name  # another package has no choices of its own
    ]
    return {name: explain.known_choices(command, name, None) for name in names}


@cache
def keys(command: str, chosen: tuple[str, ...]) -> list[str]:
    config = explain._chosen(command, list(chosen), None)
    known = (*explain._groups(command), *explain._flat(config))
    return [key for key in known if not key.startswith("hydra")]


def chosen_parts(command: str, draw: random.Random) -> list[str]:
    """Draw choices of up to two groups. Each choice brings its own keys."""
    parts = [
        f"{group}={draw.choice(names)}"
        for group, names in groups(command).items()
        if group not in ("sink", "debug", "recipes")
    ]
    return draw.sample(parts, min(2, len(parts)))


def wrong_key(draw: random.Random) -> tuple[list[str], list[str]]:
    command = draw.choice(("train", "train", "train", "pack"))
    chosen = chosen_parts(command, draw)
    known = keys(command, tuple(chosen))
    right = draw.choice([key for key in known if key not in groups(command)])
    wrong = edited(right, known, draw)
    parts = list(zip(right.split("."), wrong.split("."), strict=False))
    upto = 1 + next(number for number, (own, other) in enumerate(parts) if own != other)
    signs = ["", "", ""]
    if command == "train" and right.split(".")[0] not in OPEN:
        signs += ["+", "++"]
    sign = draw.choice(signs)
    return [command, *chosen, f"{sign}{wrong}=1"], [right, ".".join(right.split(".")[:upto])]


def wrong_group(draw: random.Random) -> tuple[list[str], list[str]]:
    command = draw.choice(("train", "train", "pack"))
    right = draw.choice([*groups(command)])
    choice = draw.choice(groups(command)[right])
    return [command, f"{edited(right, keys(command, ()), draw)}={choice}"], [right]


def wrong_choice(draw: random.Random) -> tuple[list[str], list[str]]:
    command = draw.choice(("train", "train", "pack"))
    group = draw.choice([*groups(command), "recipes"] if command == "train" else [*groups(command)])
    right = draw.choice(groups(command)[group])
    return [command, f"{group}={edited(right, groups(command)[group], draw)}"], [right]


def wrong_word(draw: random.Random) -> tuple[list[str], list[str]]:
    """Misspell a command or an option."""
    if draw.random() < 0.5:
        right = draw.choice([*COMMANDS])
        return [edited(right, COMMANDS, draw)], [right]
    right = draw.choice(OPTIONS)
    return ["train", edited(right, OPTIONS, draw)], [right]
