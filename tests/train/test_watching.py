"""Rank 0 calls the watchers; what they want, return and remember is checked."""

import random

import pytest
import torch

from framework.contracts.training import Moment, Watcher
from framework.errors import ConfigError, UserCodeError
from framework.parallel.none import NoParallel
from framework.train.watching import Watching
from tests.fakes import CPU

NOW = Moment(4, 1, 2.0)


class Remembers(Watcher):
    """Remembers what it is given to remember, and returns what it is given to return."""

    def __init__(self, memory=None, reason=None):
        self.memory = {} if memory is None else memory
        self.reason = reason

    def after_report(self, moment):
        return self.reason

    def state_dict(self):
        return self.memory

    def load_state_dict(self, state):
        self.memory = state


def watching(rank=0, **watchers):
    parallel = NoParallel(device=CPU)
    parallel.rank = rank
    return Watching(watchers, parallel)


def test_the_first_reason_counts():
    group = watching(a=Remembers(), b=Remembers(reason="it\nis late"), c=Remembers(reason="no"))
    assert (group.asks, group.agreed()) == (False, "")
    group.after_report(NOW)
    assert (group.asks, group.agreed()) == (True, "it is late")


def test_a_watcher_needs_only_the_methods_that_it_writes():
    group = watching(a=type("Silent", (Watcher,), {})())
    for look in (group.after_report, group.after_validation, group.after_save, group.at_end):
        look(NOW)
    assert not group.asks


def test_other_ranks_call_nobody():
    group = watching(rank=1, a=Remembers(reason="now"))
    group.after_report(NOW)
    assert group.is_on
    assert (group.asks, group.state_dict()["watchers"]) == (False, {})


@pytest.mark.parametrize("reason", [True, 3])
def test_a_reason_is_a_text(reason):
    with pytest.raises(ConfigError, match=r"C333\]: a\.after_report: returned a (bool|int)"):
        watching(a=Remembers(reason=reason)).after_report(NOW)


@pytest.mark.parametrize("memory", [[1], {"x": object()}, {"x": [{"y": {1, 2}}]}, {(1, 2): 3}])
def test_what_no_state_can_hold_is_refused_before_the_first_step(memory):
    with pytest.raises(ConfigError, match=r"C334\]: a\.state_dict"):
        watching(a=Remembers(memory))


def test_what_a_watcher_remembers_comes_back_by_its_name():
    memory = {"x": [1, 2.5, None, "y"], "t": torch.ones(2)}
    state = watching(a=Remembers(memory), b=Remembers()).state_dict()
    resumed, new = Remembers(), Remembers({"n": 1})
    watching(a=resumed, c=new).load_state_dict(state)
    assert resumed.memory["x"] == memory["x"]
    assert new.memory == {"n": 1}


def test_a_reason_that_was_not_agreed_on_yet_is_kept():
    first, second = watching(a=Remembers(reason="late")), watching(a=Remembers())
    first.after_report(NOW)
    second.load_state_dict(first.state_dict())
    assert (second.asks, second.agreed()) == (True, "late")


def test_an_exception_names_the_user_s_line():
    class Fails(Watcher):
        def after_save(self, moment):
            raise RuntimeError("no network")

    with pytest.raises(UserCodeError, match=r"U100.*test_watching\.py:.*no network.*a\.after_save"):
        watching(a=Fails()).after_save(NOW)


def test_what_a_watcher_draws_does_not_move_the_run_s_numbers():
    class Draws(Watcher):
        def after_report(self, moment):
            return None if torch.rand(3).sum() + random.random() > -1 else "never"

    torch.manual_seed(3)
    random.seed(3)
    expected = torch.rand(2).tolist(), random.random()
    torch.manual_seed(3)
    random.seed(3)
    watching(a=Draws()).after_report(NOW)
    assert (torch.rand(2).tolist(), random.random()) == expected
