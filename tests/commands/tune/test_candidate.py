from framework.cli.allowed import Grant
from framework.cli.compose_config import composed
from framework.commands.tune.candidate import (
    Candidate,
    applied,
    candidates,
    preference,
    whole_grid,
    worker_counts,
)
from framework.config.schema import check
from framework.trials.trial_process import ReadFacts

NOBODY = Grant(frozenset(), "")
LOADERS = {
    "plain": {"pin_memory": True},
    "prefetch": {"depth": 2},
    "stream": {"depth": 2, "copies": 2},
}
DECODED = ReadFacts(2, False, True, ("thread", "process"), 2)
GATHERED = ReadFacts(2, False, False, ("thread",), 0)
DEFAULT = Candidate(2, "thread", "prefetch", 2)


def config_of(*words: str):
    return composed(words, NOBODY)[0]


def test_no_processes_and_few_threads_for_records_that_are_only_gathered():
    result = candidates(Candidate(0, "thread", "prefetch", 2), GATHERED, LOADERS)
    assert {candidate.kind for candidate in result} == {"thread"}
    assert {candidate.num_workers for candidate in result} == {0, 1, 2}


def test_no_more_workers_than_twice_the_cores():
    assert worker_counts(DECODED) == [0, 1, 2, 4]
    assert worker_counts(ReadFacts(6, True, True, ("thread", "process"), 6)) == [
        0,
        1,
        2,
        4,
        6,
        8,
    ]
    assert worker_counts(ReadFacts(1, False, True, ("thread", "process"), 1)) == [0, 1, 2]


def test_stream_is_tried_with_cuda_only_or_if_it_was_chosen():
    cuda = ReadFacts(2, True, True, ("thread", "process"), 2)
    assert not [each for each in candidates(DEFAULT, DECODED, LOADERS) if each.loader == "stream"]
    assert [each for each in candidates(DEFAULT, cuda, LOADERS) if each.loader == "stream"]
    chosen = Candidate(2, "thread", "stream", 2)
    assert candidates(chosen, DECODED, LOADERS)[0] == chosen


def test_the_present_settings_come_first_and_nothing_twice():
    result = candidates(DEFAULT, DECODED, LOADERS)
    assert result[0] == DEFAULT
    assert len(set(result)) == len(result) == 14
    assert len(set(whole_grid(result))) == len(whole_grid(result)) == 7 + 7 * 4


def test_among_equals_few_changes_threads_and_few_workers_are_preferred():
    order = [
        Candidate(2, "thread", "plain", 0),
        Candidate(1, "thread", "plain", 0),
        Candidate(1, "process", "plain", 0),
    ]
    places = [preference(each, order[0]) for each in order]
    assert places == sorted(places)
    assert len(set(places)) == len(order)


def test_a_candidate_makes_a_valid_configuration():
    config = config_of("workers.kind=process", "workers.start_method=spawn")
    for candidate in candidates(DEFAULT, DECODED, {"prefetch": config["loader"]}):
        made = applied(config, candidate, {"prefetch": config["loader"]})
        check(made)
        words = [
            word
            for word in candidate.words
            if not word.startswith("workers.kind") or candidate.kind != "thread"
        ]
        assert made["workers"]["num"] == candidate.num_workers
        assert (
            composed([*words, "workers.start_method=null"], NOBODY)[0]["loader"] == made["loader"]
        )
    assert config["workers"]["start_method"] == "spawn"
