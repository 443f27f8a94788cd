import torch
import torch.distributed

from framework.contracts.span import EXCHANGE, OWN
from framework.parallel.timed_fsdp import TimedGather, TimedReduce
from tests.parallel.test_group import alone  # noqa: F401  # a fixture


def test_gathering_and_reducing_are_marked_and_do_what_they_did(alone):  # noqa: F811
    marks = []
    alone.time_exchanges(marks.append)
    world, own = torch.distributed.group.WORLD, torch.arange(4.0)
    gathered, reduced = torch.zeros(4), torch.zeros(4)
    TimedGather(alone.exchange)(gathered, own, group=world)
    assert marks == [OWN, EXCHANGE]
    operation = torch.distributed.ReduceOp.SUM
    TimedReduce(alone.exchange)(output_tensor=reduced, input_tensor=own, group=world, op=operation)
    assert marks == [OWN, EXCHANGE] * 2
    assert gathered.tolist() == reduced.tolist() == own.tolist()
