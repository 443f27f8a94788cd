from framework.commands.bench import yardstick as module
from framework.commands.bench.yardstick import yardstick


def test_it_is_the_sum_over_the_cores(monkeypatch):
    calls = []
    monkeypatch.setattr(module, "num_cores", lambda: 3)
    monkeypatch.setattr(module, "_hash", lambda end: calls.append(end) or 10.0)
    assert yardstick() == 30.0
    assert len(calls) == 3
