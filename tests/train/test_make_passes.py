from framework.train.cuda_graph import GraphedPasses
from framework.train.make_passes import make_passes
from framework.train.step import Passes
from tests.fakes import make_trainer
from tests.train.test_cuda_graph import Again


def test_passes_are_captured_if_there_is_a_recorder():
    kinds = []
    for recorder in (None, Again()):
        own = make_trainer(recorder=recorder)
        kinds.append(type(make_passes(own.parts, own.stepper, lambda: (0, 1))))
    assert kinds == [Passes, GraphedPasses]
