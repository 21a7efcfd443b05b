"""Batches are a function of the step only: from any step, with any workers, for any devices."""

import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.batching.packing import pack_rows
from birdie_jax.config import BatchingConfig, FinetuneConfig
from birdie_jax.engine import TrainState
from birdie_jax.engine.mesh import mesh_of
from birdie_jax.engine.protocols import IdentifiedBatches
from birdie_jax.errors import ConfigError
from birdie_jax.finetuning.stage_sequence import make_stage_sequence
from birdie_jax.finetuning.stages import read_stages
from birdie_jax.finetuning.task_batches import TaskBatches, TaskRows
from tests.finetuning import toy_tasks  # noqa: F401 - registers the tasks
from tests.trained_workdirs import micro_config, small_tokenizer

STAGES = {
    "1_backward": {"task": "toy_backward_words", "length": 64, "rows": 4, "epochs": 0.5},
    "2_words": {"task": "toy_words", "length": 96, "rows": 2, "steps": 3},
}


@pytest.fixture(scope="module")
def config():
    micro = micro_config()
    train = dataclasses.replace(micro.train, num_steps=0, loss_chunk=32)
    return dataclasses.replace(micro, train=train, finetune=FinetuneConfig(STAGES))


@pytest.fixture(scope="module")
def sequence(config):
    return make_stage_sequence(config, read_stages(config), small_tokenizer())


def state_at(step):
    return TrainState(jnp.int32(step), {}, (), {})


def test_batches_from_any_step_match_the_whole_run(config, sequence):
    batches = TaskBatches(config, sequence, mesh_of())
    assert isinstance(batches, IdentifiedBatches)
    batches.restore(batches.first_position(), state_at(0))
    made = [next(batches) for _ in range(sequence.num_steps)]
    with pytest.raises(StopIteration):
        next(batches)
    batches.close()
    for step, (batch, position) in enumerate(made):
        assert position == step + 1
        number, in_stage = sequence.find(step)
        stage, rows = sequence.stages[number], sequence.rows[number]
        expected = pack_rows([rows.examples(in_stage, row) for row in range(stage.rows)], stage.length, 3)
        jax.tree.map(np.testing.assert_array_equal, batch, expected)
        # The stage number separates the losses of the stages.
        assert set(np.unique(batch.arm_ids)) <= {-1, number}
    resumed = TaskBatches(config, sequence, mesh_of())
    step = sequence.ends[0] - 1
    resumed.restore(resumed.gather(step), state_at(step))
    for batch, position in made[step:]:
        found, after = next(resumed)
        assert after == position
        jax.tree.map(np.testing.assert_array_equal, found, batch)
    resumed.close()


def test_workers_make_blocks_of_the_rows_of_each_stage(sequence):
    whole = TaskRows(sequence, [range(4), range(2)], 3, 0)
    blocks = []
    for worker in range(2):
        # grain sends it to a worker like this.
        block = pickle.loads(pickle.dumps(whole))
        block.set_slice(slice(worker, None, 2))
        blocks.append(iter(block))
    for expected in whole:
        found = [next(block).batch for block in blocks]
        joined = [np.concatenate(fields) for fields in zip(*found, strict=True)]
        jax.tree.map(np.testing.assert_array_equal, tuple(joined), tuple(expected.batch))


def test_an_iterator_resumes_from_its_state(sequence):
    rows = TaskRows(sequence, [range(4), range(2)], 3, 0)
    one, other = iter(rows), iter(rows)
    next(one)
    other.set_state(one.get_state())
    jax.tree.map(np.testing.assert_array_equal, next(one).batch, next(other).batch)


def test_rows_that_workers_cannot_share_are_refused(config, sequence):
    config = dataclasses.replace(config, batching=BatchingConfig(workers=4))
    message = (
        "config.batching.workers: found 4; allowed: 0 or a divisor of 2, the rows of "
        "config.finetune.stages.2_words that a process makes"
    )
    with pytest.raises(ConfigError, match=message):
        TaskBatches(config, sequence, mesh_of())
