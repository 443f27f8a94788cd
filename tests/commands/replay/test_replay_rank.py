"""A replay in a rank of its own; ``test_replay`` runs one."""

import subprocess
import sys


def test_a_rank_whose_launcher_has_died_ends_at_once():
    words = [sys.executable, "-m", "framework.commands.replay.replay_rank", "/proc/0/fd/3"]
    assert subprocess.run(words, check=False, timeout=60).returncode == 1
