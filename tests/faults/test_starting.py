"""A signal at any moment of start-up.

The command must end with a documented exit code, print no traceback and leave nothing behind, and
the next run must work. ``python -m tests.faults --only starts`` draws a thousand moments.
"""

import signal

import pytest

from tests.faults import starting

TRAIN, WORKERS, RANKS, ALL_RANKS, _, _ = starting.WAYS


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return starting.make_place(tmp_path_factory.mktemp("place"))


IMPORTS = [
    ("framework.main", signal.SIGINT, TRAIN),
    pytest.param("torch._dynamo", signal.SIGUSR1, TRAIN, marks=pytest.mark.slow),
    ("torch.distributed.elastic.multiprocessing.api", signal.SIGINT, RANKS),
]


@pytest.mark.parametrize(
    ("module", "number", "way"), IMPORTS, ids=["the command", "an optimizer", "the launcher"]
)
def test_a_signal_in_an_import(place, module, number, way):
    assert starting.wrong_at_import(place, way, number, module) == ""


MOMENTS = [(2.5, signal.SIGINT, WORKERS), (4.0, signal.SIGTERM, ALL_RANKS)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment_s", "number", "way"), MOMENTS, ids=[way.name for _, _, way in MOMENTS]
)
def test_a_signal_after_some_time_and_the_same_command_again(place, moment_s, number, way):
    assert starting.wrong(place, way, number, moment_s, go_on=True) == ""
