import subprocess
import sys


def started(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_rank_whose_launcher_has_died_ends_at_once():
    done = started("-m", "framework.commands.train.start_rank", "nowhere")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_signals_have_their_meaning_before_torch_is_imported():
    code = "import sys, framework.commands.train.start_rank; print('torch' in sys.modules)"
    assert started("-c", code).stdout == "False\n"
