import subprocess
import sys

import pytest
import torch

from framework.cli.allowed import Grant
from framework.cli.compose_config import composed
from framework.commands.tune.trial import attempt, is_memory
from framework.errors import ResourceError

NOBODY = Grant(frozenset(), "")
LIMITED = """
import numpy as np
from framework.commands.tune.trial import limit_this_process
limit_this_process(64 << 20)
np.ones(16 << 20, np.uint8)
try:
    np.ones(256 << 20, np.uint8)
except MemoryError:
    print("refused")
print(open("/proc/self/oom_score_adj").read().strip())
"""


@pytest.fixture(scope="module")
def config():
    return composed(["data=synthetic", "batch_size=8"], NOBODY)[0]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (
            RuntimeError(
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes"
            ),
            True,
        ),
        (ResourceError(104, "memory", "Unable to allocate 3 GiB", "see"), True),
        (ValueError("Expected more than 1 value per channel when training"), False),
    ],
    ids=["python", "cuda", "cpu", "a worker's", "another"],
)
def test_lack_of_memory_is_recognized(error, expected):
    assert is_memory(error) is expected


def test_an_attempt_answers_with_rates_and_memory(config):
    answer = attempt(config, (), {"batch_size": 16, "seconds": 0.02, "epoch": 0}, cuda=False)
    assert min(answer["rates"]) > 0
    assert answer["step_s"] > 0
    assert answer["peak_bytes"] > 1 << 20


def test_an_attempt_that_fails_answers_why(config):
    wrong = {**config, "model": {**config["model"], "in_channels": 3}}
    answer = attempt(wrong, (), {"batch_size": 16, "seconds": 0.02, "epoch": 0}, cuda=False)
    assert "C155" in answer["why"]
    assert answer["memory"] is False


def printed(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.split()


def test_a_limited_process_is_refused_what_is_too_much_and_is_the_first_to_be_ended():
    assert printed(LIMITED) == ["refused", "1000"]
