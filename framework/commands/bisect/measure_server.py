"""A process that measures training steps of one configuration after the other.

It is started with this file's path by whatever interpreter is to be measured, whose own Paceline it
imports. The first line of standard input names the user's packages, and is answered by the
versions of all packages. Each further line is a measurement, and is answered by its rate.
Everything else that is printed goes to standard error.
"""

import json
import os
import signal
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO


def main() -> None:
    """Answer until the input ends."""
    from framework.system.stopping import die_with_parent, set_all  # noqa: PLC0415

    die_with_parent()
    set_all(signal.SIG_IGN)  # the parent decides
    answers = take_output()
    allowed = tuple(json.loads(sys.stdin.readline())["allowed"])
    print(json.dumps({"versions": versions()}), file=answers, flush=True)
    import torch  # noqa: PLC0415

    from framework.cli.allowed import find_packages  # noqa: PLC0415
    from framework.measure.host import threads_per_rank  # noqa: PLC0415

    find_packages(allowed)
    torch.set_num_threads(threads_per_rank())  # as training does
    for line in sys.stdin:
        print(json.dumps(measured(json.loads(line), allowed)), file=answers, flush=True)


def take_output() -> TextIO:
    """Return standard output for answers. Everything else that is printed goes to stderr."""
    kept = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(kept, "w", encoding="utf-8")


def versions() -> dict[str, str]:
    """Return the versions of Python and of every installed package."""
    installed = {part.metadata["Name"].lower(): part.version for part in metadata.distributions()}
    return {"python": sys.version.split()[0], **dict(sorted(installed.items()))}


def measured(request: dict[str, Any], allowed: tuple[str, ...]) -> dict[str, Any]:
    """Return the records per second of a configuration, or why it does not run."""
    from framework.errors import PacelineError, words_of  # noqa: PLC0415

    try:
        # Inside: a commit that is measured may fail to import.
        from framework.commands.probe import visit  # noqa: PLC0415

        if "num_processes" in request["config"].get("parallel", {}):
            return _measured_ranks(request, allowed)
        place = (request["epoch"], request["seconds"], request["burn_in"])
        return {"rate": visit(request["config"], allowed, *place).rate}
    except PacelineError as error:
        return {"why": str(error)}
    except Exception as error:  # noqa: BLE001  # a part of a change may not fit the rest
        return {"why": f"{type(error).__name__}: {words_of(error)}"}


def _measured_ranks(request: dict[str, Any], allowed: tuple[str, ...]) -> dict[str, Any]:
    """Return the records per second of ranks that are started for it, as a bench does."""
    from framework.commands.bench.cell import measure_ranks  # noqa: PLC0415
    from framework.measure.statistics import median  # noqa: PLC0415

    config = request["config"]
    asked = {name: request[name] for name in ("config", "seconds", "burn_in")}
    os.environ["PYTHONSAFEPATH"] = "1"  # of the ranks: they import what this process imports
    with tempfile.TemporaryDirectory(prefix="paceline-bisect-") as folder:
        path = Path(folder, "spec.json")
        path.write_text(json.dumps({**asked, "what": "train", "allowed": allowed}))
        result = measure_ranks(path, config["parallel"]["num_processes"])
    if "windows" in result:
        return {"rate": median(result["windows"])}
    return {"why": result.get("illegal") or result["failed"]}


if __name__ == "__main__":
    main()
