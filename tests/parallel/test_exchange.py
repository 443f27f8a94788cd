import copy

import torch

from framework.contracts.span import EXCHANGE, OWN
from framework.parallel.exchange import Exchange, ExchangeEnds


def test_an_exchange_is_marked_at_both_ends():
    marks, exchange = [], Exchange()
    with exchange:
        pass
    exchange.mark = marks.append
    with exchange:
        assert marks == [OWN]
    assert marks == [OWN, EXCHANGE]


def test_an_exchange_that_began_ends_with_the_context():
    marks, exchange = [], Exchange()
    exchange.mark = marks.append
    with ExchangeEnds(exchange):
        pass
    assert marks == []
    with ExchangeEnds(exchange):
        exchange.begin()
    exchange.end()
    assert marks == [OWN, EXCHANGE]


def test_a_copied_model_keeps_the_exchange_of_its_rank():
    exchange = Exchange()
    assert copy.deepcopy({"model": exchange})["model"] is exchange


def test_what_is_compiled_marks_nothing():
    marks, exchange = [], Exchange()
    exchange.mark = marks.append

    def doubled(x):
        exchange.begin()
        x = 2 * x
        exchange.end()
        return x

    compiled = torch.compile(doubled, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    assert marks == []
