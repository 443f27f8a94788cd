import json

import pytest

from framework.commands.diagnose.rank_facts import RankFacts
from tests.commands.diagnose.ranks import LATE, rank_facts


@pytest.mark.parametrize("late", [None, LATE])
def test_facts_survive_a_file(late):
    facts = rank_facts(late=late, unsynced_s=0.08, sync_batch_norm=True)
    assert RankFacts.of(json.loads(json.dumps(facts.as_dict()))) == facts


def test_all_ranks_wait_for_data_as_long_as_the_median_does():
    assert rank_facts().data_share == pytest.approx(0.02)
    assert rank_facts(spans={}).data_share == 0.0
