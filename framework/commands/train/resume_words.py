"""What ``resume=`` stands for: the words of an earlier run, then those of this command line."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from framework.cli.arguments import block_words, quoted, typed_value, without_options
from framework.cli.explain import explained
from framework.cli.hydra_session import hydra_session
from framework.cli.precedence import DATA_PATHS, with_named_recipe
from framework.config.schema import GROUPS
from framework.errors import CheckpointError, ConfigError, words_of
from framework.system.run_dir import FACTS, check_entry, reached, read_json, restored

# keys whose values may be paths
NAMES_DATA = ("data.train.", "data.val.", "dataset.", "source.", "objective.weights.")


def resumed(arguments: list[str]) -> list[str]:
    """Return the words of a command line, with ``resume=`` replaced by what it stands for.

    ``resume=RUN_DIR`` continues that run in its directory: first its own words, then those of this
    command line. ``resume=auto`` does the same if ``hydra.run.dir`` holds a run, and otherwise
    nothing, so that a job that may be killed always starts with the same command.

    Raises:
        CheckpointError: K101 if the directory holds no run.
        ConfigError: C125 for a run.json that contains more than a run's own words, C127 for
            ``resume=auto`` without a directory, or with one that differs each time.
    """
    resume = typed_value(arguments, "resume") or typed_value(arguments, "resume.run")
    if resume is None or resume in ("null", ""):
        return [word for word in arguments if word != "resume=null"]
    rest = [word for word in arguments if not word.startswith(("resume=", "resume.run="))]
    if resume == "auto":
        facts = _auto_run_dir(rest) / FACTS
        if not facts.exists():
            return rest
        if not facts.stat().st_size:  # the run was killed before it had begun
            return [*rest, "resume.auto=true", f"resume.run={quoted(str(facts.parent.absolute()))}"]
        rest = [word for word in rest if not word.startswith("hydra.run.dir=")]
        return resumed([f"resume={facts.parent}", *rest, "resume.auto=true"])
    run_dir = Path(resume.strip("'\"")).absolute()
    before, config_dir = _saved_words(resume, run_dir)
    parser = OverridesParser.create()

    def key_of(word: str) -> str:
        return parser.parse_override(word).get_key_element().lstrip("+~")

    try:
        changes = [word for word in rest if word.startswith("~") or "=" in word]
        typed = {key_of(word) for word in changes if not word.startswith("-")}
        kept: list[str] = []
        for word in with_named_recipe(before, rest):
            key = key_of(word)
            group, _, name = key.partition(".")
            # a choice that is typed again replaces its words, but not the names of the data
            is_data = group == "data" and name.split(".")[0] in DATA_PATHS
            is_replaced = group in typed and group in GROUPS and not is_data
            if key not in typed and not is_replaced:
                kept.append(word)
    except (HydraException, RecursionError):
        return arguments  # Hydra itself says what is wrong with them
    flags: list[str] = []
    if config_dir and typed_value(arguments, "--config-dir", "-cd") is None:
        flags = ["--config-dir", config_dir]
    place = quoted(str(run_dir))
    # The recipe of a sweep's job asks for a sweep, but the job continues as a single run.
    here = ["hydra.mode=RUN", f"hydra.run.dir={place}", f"resume.run={place}"]
    return [*flags, *here, *kept, *rest]


def _auto_run_dir(words: list[str]) -> Path:
    """Return ``hydra.run.dir`` with the values that the configuration gives its references."""
    run_dir = typed_value(words, "hydra.run.dir")
    if run_dir is None:
        fix = "add hydra.run.dir=RUN_DIR, the same each time"
        raise ConfigError(127, "resume = auto", "needs the directory of the run", fix)
    if "${" in run_dir:
        changes = re.search(r"\$\{(now|stamp|hydra[.:])", run_dir) is not None
        if changes or {"-m", "--multirun"} & set(words):
            what = "does not name the same directory each time"
            raise ConfigError(127, f"hydra.run.dir = {run_dir}", what, "write the directory out")
        config_dir = typed_value(words, "--config-dir", "-cd")
        overrides = without_options(words)
        with explained("train", overrides, config_dir), hydra_session("train", config_dir):
            run_dir = str(compose("train", overrides, return_hydra_config=True).hydra.run.dir)
    return Path(run_dir.strip("'\""))


def _saved_words(resume: str, run_dir: Path) -> tuple[list[str], str | None]:
    """Return the words of the run in ``run_dir``, and the folder of its ``--config-dir``."""
    where = f"resume = {resume}"
    check_entry(run_dir)
    try:
        facts = read_json(run_dir / FACTS)
        words, config_dir, folder = facts["overrides"], facts.get("config_dir"), facts.get("folder")
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise TypeError("not words")
        if not isinstance(config_dir, str | None) or (config_dir or "").startswith("-"):
            raise TypeError("no folder as config_dir")
        for word in words:
            starts_runs = word.startswith("-") or "hydra" in word.partition("=")[0]
            # The file may come from another person.
            if starts_runs or not ("=" in word or word.startswith("~")):
                what = "in a run.json, which repeats what was chosen for a run, not how it starts"
                fix = "begin a new run from its weights: init=RUN_DIR"
                raise ConfigError(125, word[:100], what, fix)
        if isinstance(folder, str) and Path(restored(folder)) != Path.cwd():
            words = [_reached(word, restored(folder)) for word in words]
        return words, config_dir and restored(config_dir)
    except FileNotFoundError as error:
        what = f"not the directory of a run (no {FACTS})"
        raise CheckpointError(101, where, what, "give the path a run printed") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"its {FACTS} cannot be used ({words_of(error)})"
        fix = f"begin a new run from its weights: init={resume}"
        raise CheckpointError(101, where, what, fix) from error


def _reached(word: str, folder: str) -> str:
    """Return a word that names data, with the paths that were meant in ``folder``."""
    key, _, value = word.partition("=")
    if not f"{key.lstrip('+')}.".startswith(NAMES_DATA):
        return word
    given: Any = value.strip("'\"")
    with suppress(HydraException):
        parsed = OverridesParser.create().parse_override(word).value()
        given = parsed if isinstance(parsed, dict | list) else given
    meant = reached(given, folder)
    return word if meant == given else f"{key}={block_words(meant)}"
