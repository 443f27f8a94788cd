import subprocess
import sys

from framework.commands.tune import memory
from framework.commands.tune.memory import peak_bytes, spare_bytes
from framework.measure.host import total_memory_bytes

LIMITED = """
import numpy as np
from framework.commands.tune.memory import limit_this_process
limit_this_process(64 << 20)
np.ones(16 << 20, np.uint8)
try:
    np.ones(256 << 20, np.uint8)
except MemoryError:
    print("refused")
print(open("/proc/self/oom_score_adj").read().strip())
"""
TORCH = """
import torch
from framework.commands.tune.memory import limit_this_process
from framework.commands.tune.trial import is_memory
limit_this_process(64 << 20)
try:
    torch.ones(256 << 20)
except Exception as error:
    print(is_memory(error), type(error).__name__)
"""


def printed(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.split()


def test_a_limited_process_is_refused_what_is_too_much_and_is_the_first_to_be_ended():
    assert printed(LIMITED) == ["refused", "1000"]


def test_torch_says_so_too_and_is_understood():
    assert printed(TORCH) == ["True", "RuntimeError"]


def test_some_memory_is_spared():
    assert memory.LEAST_SPARE <= spare_bytes() < total_memory_bytes()


def test_the_peak_begins_anew():
    held = bytearray(b"x") * (200 << 20)
    high = peak_bytes()
    del held
    memory.forget_peak()
    assert high - peak_bytes() > 100 << 20
