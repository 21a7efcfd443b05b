"""The engine refuses invalid arguments by name, before or at the first step."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from birdie_jax.config import CheckpointConfig, MeshConfig
from birdie_jax.engine import (
    FunctionBatches,
    HookResult,
    LossFunction,
    Workdir,
    make_step,
    mesh_of,
    sections_of,
    train,
)
from birdie_jax.errors import ConfigError
from tests.whole_runs import checkpoint_arrays, metrics

# Without the types, which are checked under test and nowhere else.
untyped_train, untyped_step = inspect.unwrap(train), inspect.unwrap(make_step)


def make_batch(step):
    x = np.random.default_rng(step).normal(size=(4, 3)).astype(np.float32)
    return {"x": x, "y": x.sum(axis=1)}


def squared_error(params, batch):
    return jnp.sum(jnp.square(batch["x"] @ params["w"] - batch["y"])), {}


def count(batch):
    return jnp.float32(batch["x"].shape[0])


def init_params(key):
    return {"w": jax.random.normal(key, (3,))}


LOSS = LossFunction(squared_error, count, count)


class Keeps:
    """A hook that keeps an error, and returns the result of its attribute."""

    def __init__(self, name="keeps", change=None):
        self.name, self.change = name, change

    def create_section(self, key):
        return {"error": jnp.float32(0)}

    def resume(self, state):
        pass

    def is_due(self, step, num_steps):
        return step == 1

    def run(self, state, call):
        return self.change(state, state.sections[self.name])

    def close(self):
        pass


def keeping(section):
    return Keeps(change=lambda state, kept: HookResult(state.with_section("keeps", section(kept)), {}))


def logging(**scalars):
    return Keeps(change=lambda state, kept: HookResult(state, scalars))


def doing(change):
    return Keeps(change=change)


def logs_alike(name):
    return Keeps(name, lambda state, kept: HookResult(state, {"same": 1.0}))


def run(folder, made_for=(), *, make=make_batch, mesh=None, **changed):
    """Train three steps by a step made for some hooks; `changed` is what is given to `train` instead."""
    mesh = mesh or mesh_of()
    step = make_step(init_params, LOSS, optax.sgd(0.1), mesh, sections=sections_of(made_for))
    given = {"step": step, "batches": FunctionBatches(make, mesh), "hooks": made_for, "num_steps": 3}
    return untyped_train(**{"workdir": folder, **given, **changed})


def refusal(folder, *hooks, **changed):
    with pytest.raises(ConfigError) as error:
        run(folder, hooks, **changed)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (
            keeping(lambda kept: {"error": jnp.zeros(2)}),
            "found float32[2] for keeps/error; allowed: float32[]",
        ),
        (
            keeping(lambda kept: {"error": jnp.int32(1)}),
            "found int32[] for keeps/error; allowed: float32[]",
        ),
        (
            keeping(lambda kept: {"error": 1.0}),
            "found a value of type float for keeps/error; allowed: float32[]",
        ),
        (keeping(lambda kept: {}), "found nothing for keeps/error; allowed: float32[]"),
        (
            keeping(lambda kept: {**kept, "n": kept["error"]}),
            "found float32[] for keeps/n; allowed: nothing",
        ),
        (
            doing(lambda state, kept: HookResult(state.replace(params={"w": jnp.zeros(4)}), {})),
            "found float32[4] for params/w; allowed: float32[3]",
        ),
        (doing(lambda state, kept: None), "run returned None; allowed: a HookResult, or None if "),
        (
            doing(lambda state, kept: state),
            "run returned a value of type TrainState; allowed: a HookResult",
        ),
        (
            logging(loss=1.0),
            "found the scalar 'loss', which the train step logs; allowed: a name of its own",
        ),
        (logging(step=7), "found the scalar 'step', which the train step logs; allowed: a name of its own"),
        (logging(held_out="low"), "found 'low' for the scalar 'held_out'; allowed: a number"),
        (
            logging(held_out=np.zeros(2)),
            "found array([0., 0.]) for the scalar 'held_out'; allowed: a number",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_results_of_a_hook_are_refused_at_once(tmp_path, hook, said):
    assert refusal(tmp_path, hook).startswith(f"hook 'keeps': {said}")
    assert Workdir(tmp_path).saved_steps() == []


def test_two_hooks_that_log_one_name_are_refused(tmp_path):
    hooks = logs_alike("one"), logs_alike("two")
    assert refusal(tmp_path, *hooks).startswith(
        "hook 'two': found the scalar 'same', which hook 'one' logs"
    )


class OneBatch:
    """Batches that return one thing for ever, at positions that are given."""

    def __init__(self, given, first=None, then=None):
        self.given = given
        self.first = {"n": np.zeros((), np.int64)} if first is None else first
        self.then = self.first if then is None else then

    def first_position(self):
        return self.first

    def restore(self, position, state):
        pass

    def __next__(self):
        return self.given

    def gather(self, position):
        return self.then

    def close(self):
        pass


BATCH = jax.tree.map(jnp.asarray, make_batch(0))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_steps": -1}, "num_steps: found -1; allowed: at least 1"),
        ({"num_steps": 2.5}, "num_steps: found 2.5 (float); allowed: int"),
        ({"log_every_steps": 0}, "log_every_steps: found 0; allowed: at least 1"),
        (
            {"checkpoint": CheckpointConfig(every_steps=0)},
            "checkpoint.every_steps: found 0; allowed: at least 1",
        ),
        ({"checkpoint": CheckpointConfig(keep=1)}, "checkpoint.keep: found 1; allowed: at least 2"),
        ({"workdir": ""}, "workdir: found ''; allowed: the name of a folder"),
        (
            {"workdir": "s3://bucket/run"},
            "workdir: found s3://bucket/run; allowed: a folder or gs://BUCKET/...",
        ),
        (
            {"hooks": [Keeps]},
            "hooks[0]: found the class Keeps without name; allowed: a birdie_jax.engine.Hook",
        ),
        ({"hooks": [print]}, "hooks[0]: found a value of type builtin_function_or_method without name, "),
        ({"hooks": logging()}, "hooks: found a value of type Keeps; allowed: a list of hooks"),
        (
            {"hooks": [logging()]},
            "hook 'keeps': keeps arrays, but the step has no section for them; allowed: ",
        ),
        (
            {"batches": iter([])},
            "batches: found a value of type list_iterator without first_position, restore",
        ),
        ({"step": squared_error}, "step: found a value of type function without mesh, abstract_state, "),
        (
            {"batches": OneBatch(BATCH)},
            "batches: found a value of type dict; allowed: a tuple of a batch and ",
        ),
        (
            {"batches": OneBatch(({}, 1))},
            "batches: the batch of step 1 has no arrays; allowed: one or more",
        ),
        (
            {"batches": OneBatch(({"x": jnp.zeros((0, 3)), "y": jnp.zeros(0)}, 1))},
            "batches: found shape (0, 3) for x in the batch of step 1; allowed: an array with 1 row",
        ),
        (
            {"batches": OneBatch((BATCH, 1), {"n": 0})},
            "batches: found a value of type int for n in their first position; allowed: a NumPy array",
        ),
        (
            {"batches": OneBatch((BATCH, 1), then={"n": np.zeros((), np.int32)})},
            "batches: their position: found int32[] for n; allowed: int64[]",
        ),
    ],
    # Not that of an object, which differs from process to process.
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_argument_is_refused_by_its_name(tmp_path, monkeypatch, changed, said):
    monkeypatch.chdir(tmp_path)
    assert refusal(tmp_path / "run", **changed).startswith(said)
    assert not list(tmp_path.glob("run/checkpoints/*"))


def test_the_step_of_other_hooks_is_refused(tmp_path):
    said = refusal(tmp_path, logging(), hooks=[])
    assert said.startswith("step: has the section 'keeps', but there is no hook of that name; allowed: ")
    other = logging()
    other.create_section = lambda key: {"error": jnp.zeros(2)}
    said = refusal(tmp_path, logging(), hooks=[other])
    assert said == "step: its section 'keeps': found float32[] for error; allowed: float32[2]"


def test_batches_that_end_early_are_an_error(tmp_path):
    def make(number):
        return make_batch(number) if number < 2 else next(iter([]))

    assert refusal(tmp_path, make=make) == (
        "batches: found their end after step 2; allowed: one for each of num_steps=3"
    )


def test_rows_that_the_devices_do_not_divide_are_named(tmp_path, two_devices):
    def make(number):
        return {name: value[:3] for name, value in make_batch(number).items()}

    said = refusal(tmp_path, make=make, mesh=mesh_of(MeshConfig(data=2)))
    assert said.startswith("make(0): found float32[3, 3] for x; allowed: a shape that P")
    assert "divides evenly over the mesh data=2, fsdp=1" in said


def test_fewer_steps_than_have_been_done_are_refused(tmp_path):
    run(str(tmp_path / "run"))
    assert checkpoint_arrays(tmp_path / "run", 3)["state/step"] == 3
    assert refusal(tmp_path / "run", num_steps=2).startswith(
        "num_steps: found 2; allowed: at least 3, the "
    )
    assert run(tmp_path / "run", num_steps=4).step == 4


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"init_params": {"w": 0}},
            "init_params: found a value of type dict; allowed: a function of a key",
        ),
        ({"init_params": lambda key: {}}, "init_params: found no arrays; allowed: one or more"),
        (
            {"init_params": lambda key: {"n": jnp.int32(0)}},
            "init_params: found the type int32 for n; allowed: ",
        ),
        (
            {"loss": squared_error},
            "loss: found a value of type function; allowed: a LossFunction(sums, weight",
        ),
        ({"optimizer": 0.1}, "optimizer: found a value of type float; allowed: an optax.Gradient"),
        ({"seed": -1}, "seed: found -1; allowed: at least 0"),
        ({"accumulation_steps": 0}, "accumulation_steps: found 0; allowed: at least 1"),
        (
            {"accumulation_steps": 3},
            "accumulation_steps: found 3; allowed: a divisor of the 4 rows of a batch",
        ),
        (
            {"loss": LOSS._replace(sums=lambda params, batch: squared_error(params, batch)[0])},
            "loss.sums: found float32[]; allowed: a tuple of the summed loss",
        ),
        (
            {"loss": LOSS._replace(sums=lambda params, batch: (batch["x"] @ params["w"], {}))},
            "loss.sums: found an array of shape (4,); allowed: a number, summed",
        ),
        (
            {"loss": LOSS._replace(weight=lambda batch: batch["y"])},
            "loss.weight: found an array of shape (4,); ",
        ),
        (
            {"loss": LOSS._replace(tokens=lambda batch: batch["y"])},
            "loss.tokens: found an array of shape (4,); ",
        ),
        (
            {
                "loss": LOSS._replace(
                    sums=lambda *given: (squared_error(*given)[0], {"step": jnp.float32(1)})
                )
            },
            "step: found the scalar 'step' among its sums or the result of summarise, which the loop",
        ),
        ({"sections": {"a/b": lambda key: {}}}, "hook: found the name 'a/b'; allowed: one without a slash"),
        (
            {"init_params": lambda key: {"a": {"b": jnp.zeros(1)}, "a/b": jnp.zeros(1)}},
            "checkpoint: found two arrays with the name a/b; allowed: one each",
        ),
    ],
    # Not that of an object, which differs from process to process.
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_arguments_of_make_step_are_named(tmp_path, changed, said):
    given = {"init_params": init_params, "loss": LOSS, "optimizer": optax.sgd(0.1), "mesh": mesh_of()}
    with pytest.raises(ConfigError) as error:
        run(tmp_path, step=untyped_step(**given | changed), log_every_steps=1)
    assert str(error.value).startswith(said)


def test_an_array_that_no_checkpoint_holds_is_refused_at_the_start(tmp_path):
    hook = logging()
    hook.create_section = lambda key: {"key": key}
    assert refusal(tmp_path, hook).startswith(
        "checkpoint: found the type key<fry> for keeps/key; allowed: bool"
    )


def test_a_mesh_of_no_devices_is_refused():
    with pytest.raises(ConfigError, match=r"^config\.mesh\.tensor: found 0; allowed: -1 or at least 1$"):
        mesh_of(MeshConfig(tensor=0))


def test_every_name_that_the_loop_logs_is_kept_from_hooks(tmp_path):
    run(tmp_path, log_every_steps=1)
    for name in metrics(tmp_path)[0]:
        assert refusal(tmp_path / name, logging(**{name: 1.0})).endswith("such as best/error")
