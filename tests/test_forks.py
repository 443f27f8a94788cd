import subprocess
import sys
from pathlib import Path

AFTER_OPENMP = """
import torch
from tests.forks import forked

def work():
    torch.ones(1 << 20).add_(1)  # large enough to be shared among threads

torch.set_num_threads(2)
work()
child = forked(work)
child.join(30)
print("exit code", child.exitcode)
child.kill()
"""


def test_a_process_forked_after_openmp_has_used_its_threads_may_use_them_too():
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", AFTER_OPENMP],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.stdout == "exit code 0\n", done.stderr
