import subprocess
import sys


def test_a_rank_whose_launcher_has_died_ends_before_torch_is_imported():
    code = (
        "import sys, framework.cli.start_rank as start; "
        "print('torch' in sys.modules, flush=True); start.main('nowhere')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "False\n", "")
