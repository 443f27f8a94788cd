import subprocess
import sys
from pathlib import Path


def test_a_rank_whose_launcher_is_gone_ends_at_once():
    module = "framework.commands.diagnose.start_measuring"
    command = [sys.executable, "-m", module, str(Path("no/such/file").absolute())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (1, "")
