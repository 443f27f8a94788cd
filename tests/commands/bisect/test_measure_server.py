"""The process that measures; ``test_meter`` talks to it."""

import json
import subprocess
import sys

from framework.commands.bisect import measure_server
from framework.commands.bisect.measure_server import measured, versions


def test_versions_are_those_of_all_packages():
    known = versions()
    assert known["python"] == sys.version.split()[0]
    assert {"torch", "numpy"} <= known.keys()


def test_what_does_not_run_says_why():
    answer = measured({"config": {}, "epoch": 0, "seconds": 0.1, "burn_in": 0}, ())
    assert answer["why"].startswith("KeyError")


def test_it_ends_when_its_input_ends():
    words = [sys.executable, "-P", measure_server.__file__]
    given = json.dumps({"allowed": []})
    done = subprocess.run(
        words, input=given + "\n", capture_output=True, text=True, check=True, timeout=60
    )
    assert "torch" in json.loads(done.stdout)["versions"]
