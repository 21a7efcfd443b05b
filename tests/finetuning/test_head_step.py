"""The loss of a head: the mean over samples, by stage, with gradients for all its inputs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.batching import pack_rows
from birdie_jax.finetuning.staged_step import head_loss
from birdie_jax.models import build_model
from birdie_jax.models.sample_scores import sample_losses
from birdie_jax.tasks.head_task import labelled_example
from birdie_jax.vocabulary import MASKED_LM, SEPARATOR
from tests.trained_workdirs import micro_config, random_params


def example(tokens, label, stage):
    context = np.array([MASKED_LM, *tokens, SEPARATOR], np.int32)
    return dataclasses.replace(labelled_example(context, label), arm=stage)


ROWS = [
    [example([300, 301, 302], 1, 0), example([303], 2, 1)],
    [example([304, 305], 2, 0)],
    [],
    [example([306, 300], 1, 1), example([307, 308], 1, 0)],
]


@pytest.mark.slow
def test_sums_count_samples_by_stage_and_gradients_reach_all_inputs():
    config = micro_config(name="bigs", head="classification", head_name="mood", head_outputs=2)
    model = build_model(config.model, 384)
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf / 4), random_params(config, 384, 3))
    batch = jax.tree.map(jnp.asarray, pack_rows(ROWS, 16, 2))
    loss = head_loss(model, 2, 3)
    assert loss.weight(batch) == 5
    assert loss.tokens(batch) == sum(len(one.context) for row in ROWS for one in row)
    assert loss.takes_row_keys

    def both(params):
        (total, sums), gradients = jax.value_and_grad(loss.sums, has_aux=True)(params, batch)
        return total, sums, gradients, sample_losses(model, 3, params, batch)

    total, sums, gradients, found = jax.jit(both)(params)
    by_stage = [
        np.asarray(found.found.losses)[np.asarray(found.given & (found.arm_ids == stage))].sum()
        for stage in range(2)
    ]
    np.testing.assert_allclose(sums["loss"], by_stage, rtol=1e-5)
    assert sums["tokens"].tolist() == [3, 2]
    assert total == pytest.approx(sum(by_stage), rel=1e-5)
    read = sorted({int(token) for row in ROWS for one in row for token in one.context})
    moved = np.flatnonzero(np.abs(np.asarray(gradients["embedding"])).sum(axis=1))
    assert moved.tolist() == read
    for name in ("pooler", "mood"):
        assert np.abs(gradients["task_head"][name]["kernel"]).sum() > 0
    # The head of masked LM is not used.
    assert np.abs(gradients["head_transform"]["kernel"]).sum() == 0
