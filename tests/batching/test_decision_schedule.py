"""The decision that governs each step: the docstring's example, and the rule for any lengths."""

import pytest

from birdie_jax.batching import DecisionSchedule

SCHEDULE = DecisionSchedule(every_steps=512, num_steps=1300)


def test_the_docstrings_example_of_step_512():
    assert SCHEDULE.is_due(0) and SCHEDULE.is_due(512) and SCHEDULE.is_due(1024)
    assert not SCHEDULE.is_due(511) and not SCHEDULE.is_due(513)
    assert [SCHEDULE.governing(step) for step in (0, 511, 512, 1023, 1024)] == [0, 0, 1, 1, 2]
    assert [SCHEDULE.taken_before(step) for step in (0, 1, 511, 512, 513, 1024, 1025)] == [
        0, 1, 1, 1, 2, 2, 3
    ]  # fmt: skip
    assert SCHEDULE.num_decisions == SCHEDULE.num_mixtures == 3


@pytest.mark.parametrize("every_steps", [1, 2, 3, 7])
@pytest.mark.parametrize("num_steps", [1, 2, 6, 7, 8, 14])
def test_all_rules_count_decisions_equally(every_steps, num_steps):
    schedule = DecisionSchedule(every_steps, num_steps)
    due = [step for step in range(num_steps + 1) if schedule.is_due(step)]
    assert len(due) == schedule.num_decisions
    for step in range(num_steps):
        taken = sum(decision_step <= step for decision_step in due)
        # The newest decision before a step governs it.
        assert schedule.governing(step) == taken - 1
        # A run that resumes here takes a decision that is due here.
        assert schedule.taken_before(step) == taken - schedule.is_due(step)
    # Batches made ahead of the last step request a mixture within the history.
    assert schedule.governing(num_steps) < schedule.num_mixtures
    assert schedule.num_mixtures - schedule.num_decisions == (num_steps % every_steps == 0)


def test_zero_steps_between_decisions_are_refused():
    with pytest.raises(ValueError, match="every_steps: found 0; allowed: at least 1"):
        DecisionSchedule(0, 10)
