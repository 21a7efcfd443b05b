"""A hook from outside the package is one file, named in the configuration; a run takes it up midway."""

import json
import shutil

import jax.numpy as jnp
import pytest

from birdie_jax.config import Config, TrainConfig
from birdie_jax.engine import Workdir, mesh_of
from birdie_jax.engine.hook_registry import HookParts, configured_hooks
from birdie_jax.engine.parameter_average import NAME
from birdie_jax.engine.profiler_trace import ProfilerTrace, profiled_steps
from birdie_jax.engine.state import TrainState
from birdie_jax.errors import ConfigError
from birdie_jax.models import build_model
from tests.whole_runs import CONFIG, checkpoint_arrays, finish, metrics, train_command, write_corpus

# A configuration file with a task of its own: how often the model's largest weight was looked at.
OWN_HOOK = f"""
import runpy
import jax, jax.numpy as jnp
from birdie_jax.models import build_model
from birdie_jax.engine import HookResult
from birdie_jax.engine.hook_registry import register_hook

class LargestWeight:
    name = "largest_weight"
    def create_section(self, key):
        return {{"times": jnp.int32(0)}}
    def resume(self, state):
        pass
    def is_due(self, step, num_steps):
        return step % 4 == 0
    def run(self, state, call):
        call.heartbeat("looking")
        times = state.sections[self.name]["times"] + 1
        largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(state.params))
        scalars = {{"task/largest_weight/value": largest, "task/largest_weight/times": float(times)}}
        return HookResult(state.with_section(self.name, {{"times": times}}), scalars)
    def close(self):
        pass

def make(parts):
    assert parts.config.train.num_steps == 12
    return LargestWeight()

def get_config(variant=""):
    register_hook("largest_weight", make)
    config = runpy.run_path({str(CONFIG)!r})["get_config"](variant)
    config.train.hooks = "largest_weight"
    return config
"""


def parts(hooks):
    config = Config(train=TrainConfig(hooks=hooks))
    return HookParts(config, Workdir("unused"), mesh_of(), build_model(config.model, 384))


def test_names_are_checked():
    assert configured_hooks(parts("")) == []
    assert [hook.name for hook in configured_hooks(parts(f" {NAME} "))] == [NAME]
    for wrong in ("average", f"{NAME},{NAME}"):
        allowed = rf"config\.train\.hooks: found '{wrong}'; allowed: .*{NAME}"
        with pytest.raises(ConfigError, match=allowed):
            configured_hooks(parts(wrong))


@pytest.mark.slow
def test_a_run_takes_up_a_hook_from_outside_midway(tmp_path):
    corpus = write_corpus(tmp_path)
    workdir = tmp_path / "run"
    own = tmp_path / "config_with_hook.py"
    own.write_text(OWN_HOOK)
    settings = (
        "--config.train.num_steps=12",
        "--config.checkpoint.every_steps=2",
        "--config.checkpoint.keep=9",
    )
    without = train_command(workdir, corpus, *settings, variant="fixed")
    status, output = finish(without)
    assert status == 0, output
    plain = metrics(workdir)
    # As if it had been stopped at step 4.
    for folder in (workdir / "checkpoints").iterdir():
        if int(folder.name) > 4:
            shutil.rmtree(folder)
    command = [part.replace(f"{CONFIG}:", f"{own}:") for part in without]
    status, output = finish(
        [*command, "--config.train.hooks=largest_weight", "--config.train.profile=9:10"]
    )
    assert status == 0, output
    assert "largest_weight/times is newer than the run; it starts anew" in output
    logged = metrics(workdir)
    found = {line["step"]: line for line in logged if "task/largest_weight/times" in line}
    assert [(step, line["task/largest_weight/times"]) for step, line in found.items()] == [
        (4, 1),
        (8, 2),
        (12, 3),
    ]
    assert found[8]["task/largest_weight/value"] > 0
    # Nothing else has changed by it.
    assert [line for line in logged if "task/largest_weight/times" not in line] == plain
    assert checkpoint_arrays(workdir, 12)["state/largest_weight/times"] == 3
    assert json.loads((workdir / "config.json").read_text())["train"]["hooks"]
    assert list((workdir / "tensorboard").rglob("*.xplane.pb"))


@pytest.mark.parametrize("wrong", ["5", "5:4", "0:3", "5:13", "a:b", "-1:3", "1:2:3"])
def test_steps_to_trace_are_of_the_run(wrong):
    assert profiled_steps(" 5:12 ", 12) == (5, 12)
    message = rf"config\.train\.profile: found '{wrong}'; allowed: first:last, .* train\.num_steps = 12$"
    with pytest.raises(ConfigError, match=message):
        profiled_steps(wrong, 12)


@pytest.mark.parametrize(("step", "said"), [(4, ""), (5, "found 5:12; step 5 is past"), (12, "past")])
def test_steps_to_trace_that_are_past_are_named(tmp_path, caplog, step, said):
    state = TrainState(jnp.int32(step), {}, {}, {})
    ProfilerTrace(Workdir(tmp_path), 5, 12).resume(state)
    assert len(caplog.records) == bool(said) and said in caplog.text
