"""Fixtures for the tests of tasks."""

import numpy as np
import pytest

from birdie_jax.tasks import TaskModel


@pytest.fixture
def set_head_scores(monkeypatch):
    """Return a function that sets the scores of the head for the next samples."""

    def set_scores(scores):
        def head_scores(model, examples, progress):
            del model, progress
            assert len(examples) == len(scores)
            return [np.array([score], np.float32) for score in scores]

        monkeypatch.setattr(TaskModel, "head_scores", head_scores)

    return set_scores
