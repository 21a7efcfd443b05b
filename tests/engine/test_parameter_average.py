"""The average of the parameters: its weights, on a mesh, and of a run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from birdie_jax.config import MeshConfig
from birdie_jax.engine import Checkpoints, Workdir
from birdie_jax.engine.checkpoint_format import named_leaves
from birdie_jax.engine.mesh import mesh_of, state_sharding
from birdie_jax.engine.parameter_average import NAME, ParameterAverage
from birdie_jax.engine.protocols import HookCall
from birdie_jax.engine.state import TrainState
from birdie_jax.errors import OtherCheckpointError
from birdie_jax.models import build_model
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.models.parameters import ParameterPolicy
from birdie_jax.planning.compilation import abstract_step
from birdie_jax.resolve import resolve_run
from birdie_jax.trained_model import model_of_workdir
from tests.trained_workdirs import POSITION, micro_config, small_tokenizer, write_workdir
from tests.whole_runs import checkpoint_arrays, finish, train_command, write_corpus

SHAPES = {"kernel": jax.ShapeDtypeStruct((2, 4, 6), jnp.float32)}


def call(step):
    return HookCall(step, 100, False, lambda _: None, lambda: False)


@pytest.mark.parametrize("decay", [0.8, 0.999999])
def test_earlier_parameters_weigh_less_and_the_weights_add_up_to_one(decay):
    hook = ParameterAverage(SHAPES, decay, 5)
    random = np.random.default_rng(0)
    state = TrainState(jnp.int32(0), {}, {}, {NAME: hook.create_section(jax.random.key(0))})
    seen = []
    for number in range(1, 5):
        seen.append(random.normal(size=(2, 4, 6)))
        state = state.replace(params={"kernel": jnp.asarray(seen[-1], jnp.float32)})
        before, state = state, hook.run(state, call(5 * number)).state
        # A run that ends early saves the state from before; one that is made longer calls the hook again.
        assert before.sections[NAME].count == number - 1
        state = hook.run(state, call(5 * number)).state
        weights = decay ** np.arange(number)[::-1]
        expected = np.tensordot(weights / weights.sum(), np.stack(seen), 1)
        np.testing.assert_allclose(
            state.sections[NAME].parameters["kernel"], expected, rtol=1e-5, atol=1e-6
        )
    assert [step for step in range(13) if hook.is_due(step, 12)] == [5, 10, 12]


def test_it_is_divided_over_devices_as_the_parameters_are(two_devices):
    mesh = mesh_of(MeshConfig(data=1, fsdp=2))
    section = ParameterAverage(SHAPES, 0.9, 1).create_section(jax.random.key(0))
    state = TrainState(jnp.int32(0), SHAPES, {}, {NAME: section})
    policies = {"kernel": ParameterPolicy(("features", "inner"), weight_decay=True)}
    found = state_sharding(mesh, state, policies).sections[NAME]
    assert found.parameters["kernel"].spec == PartitionSpec(None, "fsdp", "tensor")
    assert found.count.spec == PartitionSpec()


def test_a_plan_counts_the_average():
    config = micro_config()
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, hooks=NAME))
    run = resolve_run(config, 300, jax.devices()[:1])
    with jax.set_mesh(run.mesh):
        state = abstract_step(run).abstract_state
    average = state.sections[NAME].parameters
    assert jax.tree.map(jnp.shape, average) == jax.tree.map(jnp.shape, state.params)


def test_a_checkpoint_without_an_average_is_refused(tmp_path):
    write_workdir(tmp_path / "run", micro_config(), steps=(5,))
    with pytest.raises(
        OtherCheckpointError, match=r"has no average of the parameters; allowed: .*parameter_av"
    ):
        model_of_workdir(tmp_path / "run", average=True)


def test_an_average_without_parameters_is_refused(tmp_path):
    config = micro_config()
    write_workdir(tmp_path / "run", config)
    checkpoints = Checkpoints(Workdir(tmp_path / "run"), config.checkpoint)
    shapes = parameter_shapes(build_model(config.model, small_tokenizer().vocab_size))
    params = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), shapes)
    hook = ParameterAverage(shapes, 0.8, 10)
    state = TrainState(jnp.int32(6), params, {}, {NAME: hook.create_section(jax.random.key(0))})
    checkpoints.save(state, POSITION, 6)
    checkpoints.wait()
    with pytest.raises(OtherCheckpointError, match=r"00000006: found an average without parameters"):
        model_of_workdir(tmp_path / "run", 6, average=True)
    checkpoints.save(hook.run(state, call(10)).state, POSITION, 10)
    checkpoints.close()
    model_of_workdir(tmp_path / "run", 10, average=True)


@pytest.mark.slow
def test_the_average_of_a_run_equals_the_average_of_its_checkpoints(tmp_path):
    """The parameters are added at steps 4 and 8, whose checkpoints are kept."""
    corpus = write_corpus(tmp_path)
    fields = {"train.num_steps": 8, "checkpoint.every_steps": 4, "train.hooks": NAME}
    fields |= {"train.average_every_steps": 4, "train.average_decay": 0.5}
    asked = [f"--config.{name}={value}" for name, value in fields.items()]
    status, output = finish(train_command(tmp_path / "run", corpus, *asked))
    assert status == 0, output
    first, last = (checkpoint_arrays(tmp_path / "run", step) for step in (4, 8))
    average = model_of_workdir(tmp_path / "run", average=True)
    assert average.origin == f"{tmp_path}/run, averaged parameters step 8"
    for name, found in named_leaves(average.params).items():
        expected = (0.5 * first[f"state/params/{name}"] + last[f"state/params/{name}"]) / 1.5
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=name)
