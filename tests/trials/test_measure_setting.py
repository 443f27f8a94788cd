import json
import math
import subprocess
import sys

import pytest
import torch

from framework.cli import arguments, hydra_app
from framework.config.assemble import Assembly
from framework.errors import ResourceError
from framework.trials.measure_setting import answer_to, is_memory, read_facts, together
from tests.conftest import make_records, write_store

NOBODY = arguments.Grant(frozenset(), "")
LIMITED = """
import numpy as np
import torch
from framework.trials.measure_setting import limit_memory
limit_memory(torch.device("cpu"), 64 << 20)
np.ones(16 << 20, np.uint8)
try:
    np.ones(256 << 20, np.uint8)
except MemoryError:
    print("refused")
print(open("/proc/self/oom_score_adj").read().strip())
"""


def request(*words: str, what: str = "loader") -> dict:
    config, allowed = hydra_app.composed(["data=synthetic", "batch_size=8", *words], NOBODY)
    times = {"seconds": 0.08, "burn_in": 0.0, "epoch": 0, "limit": None}
    return {"config": config, "allowed": allowed, "what": what, **times}


@pytest.mark.parametrize("what", ["train", "loader", "host", "compute", "visit"])
def test_each_part_is_measured_by_windows(what):
    answer = answer_to(request(what=what))
    assert len(answer["windows"]) == (1 if what == "visit" else 8)
    assert all(math.isfinite(rate) and rate > 0 for rate in answer["windows"])
    assert ("yardstick_per_s" in answer) == (what != "visit")
    assert answer["peak_bytes"] > 1 << 20
    json.dumps(answer)


def test_a_setting_that_cannot_run_answers_with_its_error():
    answer = answer_to(request("model.in_channels=3", what="train"))
    kind, (number, *_) = answer["error"]
    assert (kind, number, answer["memory"]) == ("ConfigError", 155, False)


def test_an_unexpected_error_is_one_line(capsys):
    wrong = request()
    del wrong["config"]["loader"]
    assert answer_to(wrong) == {"failed": "KeyError: 'loader'", "memory": False}
    assert "Traceback" in capsys.readouterr().err


def test_ranks_add_up():
    first = {"windows": [1.0, 2.0, 3.0], "spans_s": {"wait": 1.0, "copy": 0.0}, "step_s": 5.0}
    second = {"windows": [10.0, 20.0], "spans_s": {"wait": 3.0}, "step_s": 6.0}
    spans = {"wait": 2.0, "copy": 0.0}
    expected = {"windows": [11.0, 22.0], "spans_s": spans, "step_s": 5.0}
    assert together([first, second]) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 4096 bytes"), True),
        (ResourceError(104, "memory", "Unable to allocate 3 GiB", "see"), True),
        (ValueError("Expected more than 1 value per channel when training"), False),
    ],
    ids=["python", "cuda", "cpu", "a worker's", "another"],
)
def test_lack_of_memory_is_recognized(error, expected):
    assert is_memory(error) is expected


def test_a_limited_process_is_refused_what_is_too_much_and_is_the_first_to_be_ended():
    done = subprocess.run(
        [sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["refused", "1000"]


CLIPS = "data.train={_target_: tests.data.own_items.Clips}"
OWN = (
    *("model=null", "+model._target_=torch.nn.Identity", "augment=none", "objective.input=wave"),
    *("allow_targets=[tests]", "data.fields=[wave,label]"),
)


def facts(*words: str, grant: arguments.Grant = NOBODY) -> tuple:
    """Return whether a setting decodes, the kinds of its workers, and their number."""
    assembly = Assembly(*hydra_app.composed(["data.val=null", *words], grant))
    result = read_facts(assembly)
    assembly.close()
    return result["decodes"], result["kinds"], result["num_workers"]


def test_facts_depend_on_how_the_source_reads(monkeypatch):
    monkeypatch.setattr("framework.config.assemble.cores_per_rank", lambda: 3)
    store = f"data.train={write_store('a.h5', make_records(9))}"
    assert facts(store, "prepare=null", "batch_size=4") == (False, ("thread",), 0)
    decoded = facts(store, "prepare=null", "transform=resize", "transform.size=[8,8]")
    assert decoded == (True, ("thread", "process"), 3)
    assert facts("data=synthetic") == (False, (), 0)


@pytest.mark.parametrize(
    ("words", "kinds", "num_workers"),
    [
        (("data=dataset", CLIPS), ("process",), 3),
        (("data=dataset", CLIPS, "workers.num=0"), ("process",), 0),
        (("data=dataloader", "data.train={_target_: tests.data.own_items.make_loader}"), (), 0),
    ],
    ids=["dataset", "without workers", "dataloader"],
)
def test_a_dataset_of_the_users_is_read_by_processes(words, kinds, num_workers, monkeypatch):
    monkeypatch.setattr("framework.config.assemble.cores_per_rank", lambda: 3)
    grant = arguments.Grant(frozenset({"allow_targets"}), "")
    assert facts(*words, *OWN, grant=grant)[1:] == (kinds, num_workers)
