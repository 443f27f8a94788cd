"""Measure settings in processes that stay, one for each environment."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import IO, Any, NamedTuple, final

from framework.commands.bench.process import end_session, last_line
from framework.errors import ConfigError, ResourceError

SERVER = Path(__file__).with_name("measure_server.py")
BURN_IN_S = 0.15  # all queues are full after this time
MOST_SERVERS = 3  # processes that stay: the oldest one ends


class Refused(Exception):
    """A setting does not run. The text says why."""


class Environment(NamedTuple):
    """What runs a configuration.

    Attributes:
        python: The interpreter.
        tree: A checked-out commit whose modules come first; None: those of the present directory.
    """

    python: str = sys.executable
    tree: str | None = None


class MeasuredSetting(NamedTuple):
    """A configuration in an environment."""

    config: dict[str, Any]
    environment: Environment


@final
class Meter:
    """Measures settings for ``seconds`` each. ``close`` ends its processes."""

    def __init__(self, allowed: Sequence[str], seconds: float) -> None:
        self.allowed = tuple(allowed)
        self.seconds = seconds
        self._servers: dict[Environment, MeasuringProcess] = {}
        self._epochs = count()

    def rate(self, setting: MeasuredSetting) -> float:
        """Return records per second. Refused if the setting does not run.

        Raises:
            ResourceError: R340 if the process of an environment without commits was lost.
        """
        server = self.server(setting.environment)
        request = {
            "config": setting.config,
            "epoch": next(self._epochs),
            "seconds": self.seconds,
            "burn_in": BURN_IN_S,
        }
        try:
            answer = server.ask(request)
        except ResourceError as error:
            self._servers.pop(setting.environment).close()
            if setting.environment.tree is None:
                raise
            raise Refused(str(error)) from error
        if "rate" not in answer:
            raise Refused(answer["why"])
        return float(answer["rate"])

    def versions(self, environment: Environment) -> Mapping[str, str]:
        """Return the versions of the packages of an environment."""
        return self.server(environment).versions

    def server(self, environment: Environment) -> "MeasuringProcess":
        """Return the process of an environment. It is started if there is none."""
        server = self._servers.pop(environment, None)
        if server is None:
            server = MeasuringProcess(environment, self.allowed)
        self._servers[environment] = server
        while len(self._servers) > MOST_SERVERS:
            self._servers.pop(next(iter(self._servers))).close()
        return server

    def close(self) -> None:
        for server in self._servers.values():
            server.close()
        self._servers.clear()


@final
class MeasuringProcess:
    """A process of an environment that measures one configuration after the other.

    ConfigError C348 if the interpreter does not start, or has no Paceline. Refused if a checked-out
    commit does not start.
    """

    def __init__(self, environment: Environment, allowed: Sequence[str]) -> None:
        self._environment = environment
        self._errors: IO[str] = tempfile.TemporaryFile(  # noqa: SIM115  # see close
            "w+", encoding="utf-8", errors="replace"
        )
        try:
            self._process = subprocess.Popen(  # noqa: S603  # the interpreter that was typed
                # -P: the folder of the server has modules that hide others
                [environment.python, "-P", str(SERVER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env=_variables(environment),
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            what = f"cannot be started: {error.strerror}"
            raise self._unusable(what) from error
        answer = self.ask({"allowed": list(allowed)})
        if "versions" not in answer:
            self.close()
            what = f"cannot measure ({answer['why']})"
            if environment.tree is not None:
                raise Refused(what)
            raise self._unusable(what)
        self.versions: dict[str, str] = answer["versions"]

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer, or why there is none. ResourceError R340 if the process was lost."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # the process has died, which its answer will say
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if line:
            return json.loads(line)
        code = process.wait()
        self._errors.seek(0)
        words = ": ".join([f"exit code {code}", *last_line(self._errors.read(), 200)])
        if "allowed" in request:
            return {"why": words}
        fix = "look at memory, and whether 'paceline train' runs with these settings"
        raise ResourceError(340, "the measuring process", f"was lost ({words})", fix)

    def close(self) -> None:
        end_session(self._process, 0.0)
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                stream.close()  # pyright: ignore[reportOptionalMemberAccess]
        self._errors.close()

    def _unusable(self, what: str) -> ConfigError:
        fix = "give the python of a virtual environment with Paceline"
        return ConfigError(348, f"python = {self._environment.python}", what, fix)


def _variables(environment: Environment) -> dict[str, str]:
    """Return the environment's variables, which let it find what this process finds."""
    variables = dict(os.environ)
    places = [variables.get("PYTHONPATH", "")]
    if (
        environment.python == sys.executable
    ):  # as this process was started, maybe without installing
        places.append(str(Path(__file__).parents[3]))
    if environment.tree is not None:
        places.insert(0, environment.tree)
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    return variables
