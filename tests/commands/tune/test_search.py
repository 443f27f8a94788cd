import pytest

from framework.cli.allowed import Grant
from framework.cli.compose_config import composed
from framework.commands.tune.candidate import Candidate
from framework.commands.tune.halving import Final, Rung
from framework.commands.tune.search import Search
from framework.errors import ConfigError
from tests.conftest import make_records, write_store

NOBODY = Grant(frozenset(), "")


def search(*words: str) -> Search:
    store = write_store("a.h5", make_records(24))
    given = [f"data.train={store}", "batch_size=8", "prepare=null", *words]
    loaders = {
        name: composed([*given, f"loader={name}"], NOBODY)[0]["loader"]
        for name in ("plain", "prefetch")
    }
    return Search(composed(given, NOBODY)[0], (), loaders, "prefetch")


def test_a_search_climbs_from_rung_to_rung_to_the_final():
    rungs = list(search().rungs(2.0))
    assert [type(rung) for rung in rungs] == [Rung, Rung, Final]
    assert rungs[-1].default == Candidate(0, "thread", "prefetch", 2)


def test_what_a_run_would_raise_is_raised_before_anything_is_measured():
    config = composed(["data.train=nowhere.h5", "prepare=null"], NOBODY)[0]
    with pytest.raises(Exception, match="nowhere"):
        Search(config, (), {"prefetch": config["loader"]}, "prefetch")
    with pytest.raises(ConfigError, match="C155"):
        search("model.in_channels=1").measure(Candidate(0, "thread", "prefetch", 2), 0.01)
