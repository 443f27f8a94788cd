"""The smallest part of a list that has an effect."""

from hypothesis import given
from hypothesis import strategies as st

from framework.commands.bisect.delta_debug import smallest_part


@given(st.data())
def test_a_cause_of_any_size_is_found_among_any_number(data):
    items = list(range(data.draw(st.integers(1, 12))))
    cause = data.draw(st.sets(st.sampled_from(items), min_size=1))
    tested = []

    def has_effect(part):
        tested.append(tuple(part))
        return cause <= set(part)

    assert set(smallest_part(items, has_effect)) == cause
    assert len(tested) == len(set(tested))


def test_one_of_eight_takes_at_most_six_tests():
    for cause in range(8):
        tested = []

        def has_effect(part, cause=cause, tested=tested):
            tested.append(part)
            return cause in part

        assert smallest_part(range(8), has_effect) == [cause]
        assert len(tested) <= 6
