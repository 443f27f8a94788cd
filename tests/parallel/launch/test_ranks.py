import signal
import threading
import time

import pytest
from torch.distributed import HashStore

from framework.parallel.launch import ranks
from framework.parallel.launch.ranks import under_launcher


def test_the_environment_says_whether_a_launcher_is_there(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert not under_launcher()
    monkeypatch.setenv("RANK", "3")
    assert not under_launcher()
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert under_launcher()


def test_a_rank_that_waits_for_the_text_of_rank_0_stops_at_a_signal(monkeypatch):
    store = HashStore()
    monkeypatch.setattr(ranks, "meet", lambda: (store, 1, 2))
    late = threading.Timer(3, store.set, ("paceline/config", "text"))
    late.start()
    start = time.monotonic()
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with pytest.raises(KeyboardInterrupt):
        ranks.share_text(None)
    assert time.monotonic() - start < 2
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    late.cancel()
