"""``paceline trust``: let configurations in this folder call its packages, from now on."""

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from framework.cli.outcome import RunOutcome, option, run_options
from framework.cli.tables import plural
from framework.cli.trusted_folders import packages_in, trust, trust_file
from framework.errors import ConfigError, say
from framework.system.stopping import message_if_stopped


@dataclass(frozen=True)
class TrustOptions:
    """Trust the packages of this folder: configurations here may then call their classes."""

    yes: bool = option(False, "trust them without a question, as a script must")


def main(arguments: list[str]) -> int:
    return run_options("trust", arguments, TrustOptions, _trust)


def _trust(options: TrustOptions, _: Path) -> RunOutcome:
    folder = os.path.realpath(".")
    packages = packages_in(folder)
    if not packages:
        what = "has no package or module of its own"
        raise ConfigError(211, folder, what, "go to the folder that has yours, beside it")
    say(f"{plural(len(packages), 'package')} in {folder}:")
    for name in packages:
        num_files = len(list(Path(name).rglob("*.py"))) or 1  # a module is one
        say(f"  {name}  ({plural(num_files, 'file')})")
    if not options.yes:
        if not sys.stdin.isatty():
            what = "asks before it trusts, and there is no terminal"
            raise ConfigError(211, "paceline trust", what, "add yes=true")
        answer = ""  # also that of a terminal that ends
        with message_if_stopped("stopped{by}: nothing is trusted"), suppress(EOFError):
            answer = input("Every command here may then run their code. Trust them? [y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            return RunOutcome(ConfigError.exit_code, "nothing is trusted")
    trust(folder, packages)
    say(f"trusted: {', '.join(packages)}. {trust_file()} remembers it")
    return RunOutcome(0, "trusted")
