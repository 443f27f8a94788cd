"""The parts that deliver a run's data: built, noted, and the same on all ranks."""

import re
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from framework.config import assemble
from framework.data import dali, synthetic
from framework.data.source import StoreSource
from framework.errors import ConfigError, DistributedError
from framework.parallel import ddp, none
from framework.run import choice_notes
from framework.system import native
from tests.cli.command import is_one_error_line, losses, paceline
from tests.config.assembled import SYNTHETIC, assembled

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_ranks_do_not_touch_the_first_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    # in a build without CUDA, touching it raises
    assert assemble.find_device("cuda") == torch.device("cuda", 0)
    assert assemble.find_device("auto") == torch.device("cuda", 0)


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"C119\]: device = cuda:77"):
        assemble.find_device("cuda:77")


def test_a_failed_assembly_closes_what_it_opened(monkeypatch):
    closed = []

    def close(source):
        closed.append(source)

    monkeypatch.setattr(synthetic.SyntheticSource, "close", close)
    with pytest.raises(ConfigError, match=r"C134.*leaves nothing of .*, fewer than a batch"):
        assembled("last=drop", "batch_size=1000000")
    assert closed


@pytest.mark.parametrize(
    ("words", "exact"),
    [
        (["augment=normalize"], True),
        (["augment=kornia", "augment.pipeline=[{name: RandomHorizontalFlip}]"], False),
    ],
    ids=["exact", "another library"],
)
def test_an_exact_augmentation_is_compiled_on_a_gpu_if_that_was_asked_for(words, exact):
    with assembled("compile=true", *words) as assembly:
        assert not any("compile" in note for note in choice_notes(assembly))
        assert not assemble.fuses(assembly.config, assembly.augment, CPU)
        assert assemble.fuses(assembly.config, assembly.augment, torch.device("cuda", 0)) == exact


COMPILED = ("train", *SYNTHETIC, "data.val=null", "max_steps=2", "report_every=1")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a compiler")
def test_a_compiled_model_learns_the_same_and_is_saved_under_the_same_names():
    assert paceline(*COMPILED, "hydra.run.dir=plain").code == 0
    cache = str(Path("cache").absolute())
    words = (*COMPILED, "compile=true", "hydra.run.dir=compiled")
    done = paceline(*words, TORCHINDUCTOR_CACHE_DIR=cache)
    assert done.code == 0, done.err
    assert losses(Path("compiled")) == pytest.approx(losses(Path("plain")), rel=1e-4)
    names = [
        list(torch.load(f"{run}/checkpoints/last.pt", weights_only=True))
        for run in ("plain", "compiled")
    ]
    assert names[0] == names[1]
    assert any(Path("cache").rglob("*.cpp"))  # it was compiled


@pytest.mark.slow
def test_without_a_compiler_one_line_says_so():
    done = paceline(*COMPILED, "compile=true", CXX="", PATH=str(Path("empty").absolute()))
    assert done.code == 5
    assert is_one_error_line(done, "R105")


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (("rank_batch_size=8", "accumulate=2"), "rank_batch_size=8 makes batch_size 16"),
        (
            ("optim.lr=0.1", "optim.scaling=linear", "optim.reference_batch_size=64"),
            "optim.scaling=linear: batch_size 128, lr 0.2",
        ),
        (("cuda_graph=true",), "cuda_graph=true: cpu has no graphs"),
        (("model.num_classes=auto",), "from the data: "),
    ],
    ids=["batch size", "scaling", "graph", "facts"],
)
def test_what_choices_mean_together_is_noted(words, note):
    with assembled(*words) as assembly:
        assert any(note in line for line in choice_notes(assembly))


@pytest.mark.parametrize("are_compiled", [True, False])
def test_c_functions_that_could_not_be_compiled_are_noted(monkeypatch, are_compiled):
    monkeypatch.setattr(native, "are_compiled", lambda: are_compiled)
    with assembled() as assembly:
        noted = any("C functions are not compiled" in note for note in choice_notes(assembly))
    assert noted != are_compiled


CONFIG = {
    "optim": {"_target_": "torch.optim.SGD", "lr": 0.1},
    "schedule": {"_target_": "framework.schedule.constant.Constant"},
    "accumulate": 1,
    "precision": {},
    "on_nan": "stop",
    "recompute": None,
}


def refusal(change=None, parallel=none.NoParallel, source=StoreSource, device=CUDA):
    ranks = SimpleNamespace(device=device, graph_refusal=parallel.graph_refusal)
    return assemble.graph_refusal({**CONFIG, **(change or {})}, ranks, source)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"precision": {"dtype": "bf16"}}, None),
        ({"optim": {"_target_": "torch.optim.LBFGS"}}, "only a fused optimizer"),
        ({"accumulate": 2}, "several passes"),
        ({"on_nan": "skip"}, "on_nan=skip"),
        ({"recompute": ["layers"]}, "recompute"),
        ({"schedule": {"_target_": "torch.optim.lr_scheduler.StepLR"}}, "a scheduler of torch"),
        ({"precision": {"dtype": "fp16"}}, "fp16"),
    ],
)
def test_a_configuration_that_is_not_captured_has_its_reason(change, why):
    reason = refusal(change)
    assert reason is None if why is None else why in reason


def test_parts_and_devices_refuse_graphs_for_themselves():
    assert "replicas" in refusal(parallel=ddp.DistributedParallel)
    assert "DALI" in refusal(source=dali.DALISource)
    assert refusal(device=CPU) == "cpu has no graphs"


@pytest.mark.parametrize(
    ("block", "is_fused"),
    [
        ({"_target_": "torch.optim.SGD", "lr": 0.1}, True),
        ({"_target_": "torch.optim.SGD", "foreach": True}, False),
        ({"_target_": "torch.optim.AdamW", "fused": False}, False),
        ({"_target_": "torch.optim.LBFGS"}, False),
    ],
)
def test_the_optimizer_is_fused_if_it_can_be_and_nothing_else_is_typed(block, is_fused):
    assert assemble.fused(block) == ({**block, "fused": True} if is_fused else block)


class Weight:
    def __init__(self, is_cuda=True, floating=True):
        self.is_cuda, self._floating = is_cuda, floating

    def is_floating_point(self):
        return self._floating


class Model:
    def __init__(self, *weights, sparse=False):
        self.weights, self.sparse = weights, sparse

    def parameters(self):
        return iter(self.weights)

    def modules(self):
        return [self]


SHARDED = Weight()
SHARDED.full_tensor = None


@pytest.mark.parametrize(
    ("model", "target", "in_one"),
    [
        (Model(Weight()), "torch.optim.SGD", True),
        (Model(Weight(is_cuda=False)), "torch.optim.SGD", False),
        (Model(Weight(), Weight(floating=False)), "torch.optim.SGD", False),
        (Model(Weight(), sparse=True), "torch.optim.SGD", False),
        (Model(Weight(), SHARDED), "torch.optim.AdamW", False),
        (Model(Weight()), "mine.SGD", False),
    ],
    ids=["gpu", "cpu", "whole numbers", "sparse", "sharded", "of the user"],
)
def test_on_a_gpu_torchs_optimizers_update_all_weights_in_one_kernel(model, target, in_one):
    assert assemble.fuses_by_default({"_target_": target}, model) == in_one


def refusals(*facts):
    """Return the message of the error of each rank, or "" for none. A rank is a thread."""
    brought, messages = [None] * len(facts), [""] * len(facts)
    met = threading.Barrier(len(facts))

    def check(rank):
        def gather(values):
            brought[rank] = values
            met.wait(10)
            return brought

        try:
            ranks = SimpleNamespace(world_size=len(facts), gather=gather)
            assemble.check_agreement(ranks, facts[rank])
        except DistributedError as error:
            messages[rank] = str(error)

    threads = [threading.Thread(target=check, args=(rank,)) for rank in range(len(facts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return messages


def test_every_rank_names_the_key_and_the_rank_that_differs():
    same = {"seed": 1, "data": "ab"}
    messages = refusals(same, same, {**same, "data": "cd"})
    assert set(messages) == {messages[0]}
    assert re.search(r"error\[P105\]: rank 2: .*data \(cd, rank 0 has ab\)", messages[0])
    assert "seed" not in messages[0]


def test_the_digest_of_the_code_is_of_all_sources(monkeypatch, tmp_path):
    assert re.fullmatch("[0-9a-f]{16}", assemble.code_digest())
    (tmp_path / "__init__.py").write_text("a = 1\n")
    monkeypatch.setattr("framework.__file__", str(tmp_path / "__init__.py"))
    first = assemble.code_digest.__wrapped__()
    (tmp_path / "part").mkdir()
    (tmp_path / "part/new.py").write_text("")
    assert assemble.code_digest.__wrapped__() != first != assemble.code_digest()
