"""Notes on what choices mean together."""

from contextlib import closing
from dataclasses import replace

from framework.config.assemble import assemble
from framework.config.choice_notes import choice_notes
from framework.system import native
from tests.commands.tune.test_candidate import config_of

SYNTHETIC = ("data=synthetic", "data.val=null", "prepare=null", "workers.num=0")


def notes(*words):
    with closing(assemble(config_of(*SYNTHETIC, *words), ())) as assembly:
        return " | ".join(choice_notes(assembly))


def test_a_batch_size_per_rank_is_reported_as_the_total():
    assert "rank_batch_size=8 makes batch_size 16" in notes("rank_batch_size=8", "accumulate=2")


def test_a_scaled_learning_rate_is_reported():
    words = ("optim.lr=0.1", "optim.scaling=linear", "optim.reference_batch_size=64")
    assert "optim.scaling=linear: batch_size 128, lr 0.2" in notes("batch_size=128", *words)


def test_a_graph_that_cannot_be_captured_has_its_reason():
    assert "cuda_graph=true: cpu has no graphs" in notes("cuda_graph=true")


def test_facts_of_the_data_are_printed_as_they_would_be_typed():
    assert "from the data: " in notes("model.num_classes=auto")


def test_c_functions_that_could_not_be_compiled_are_reported(monkeypatch):
    monkeypatch.setattr(native, "are_compiled", lambda: False)
    assert "the C functions are not compiled: " in notes()
    monkeypatch.setattr(native, "are_compiled", lambda: True)
    assert "compiled" not in notes()


def test_a_long_fact_of_the_data_is_cut():
    with closing(assemble(config_of(*SYNTHETIC), ())) as assembly:
        facts = {"objective.class_weights": [0.123456] * 1000}
        [note, *_] = choice_notes(replace(assembly, from_data=facts))
    assert note.endswith("...")
    assert len(note) < 250
