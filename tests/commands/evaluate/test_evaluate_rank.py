"""One rank of an evaluation; ``test_evaluate`` runs two."""

import subprocess
import sys


def test_a_rank_whose_launcher_has_died_ends_at_once():
    words = [sys.executable, "-m", "framework.commands.evaluate.evaluate_rank", "/proc/0/fd/3"]
    assert subprocess.run(words, check=False, timeout=60).returncode == 1
