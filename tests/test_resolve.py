"""One module resolves runs; training, fine-tuning and plans repeat no choice."""

import ast
import dataclasses
from pathlib import Path

import jax
import pytest

import birdie_jax
from birdie_jax.config import parse_config
from birdie_jax.errors import ConfigError
from birdie_jax.models.parameters import one_token_batch
from birdie_jax.resolve import resolve_run, trained_arms
from birdie_jax.train import find_parts
from tests.micro_config import get_config

PACKAGE = Path(birdie_jax.__file__).parent
# The callers of each function, in addition to its own module and resolve.py.
ONLY_HERE = {
    "fill_in_sizes": set(),
    "arrange": set(),
    "make_mixture": set(),
    # A trained model, one from a folder, for generation; sizes of absent models; a period of layers;
    # decoding only.
    "build_model": {
        "device_check/scans.py",
        "engine/automatic_sizes.py",
        "finetuning/teacher.py",
        "interop/huggingface_folder.py",
        "interop/model_folder.py",
        "plan.py",
        "planning/model_flops.py",
        "trained_model.py",
    },
    "parameter_policies": {
        "finetuning/teacher.py",
        "generation/generator.py",
        "planning/decoding.py",
        "pruning_cost/pruned_prompts.py",
    },
}


def modules_that_call(name):
    """Return the modules of the package that call a function, except those that define it."""
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        nodes = list(ast.walk(tree))
        if any(isinstance(node, ast.FunctionDef) and node.name == name for node in nodes):
            continue
        if any(isinstance(node, ast.Call) and getattr(node.func, "id", "") == name for node in nodes):
            yield path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("name", ONLY_HERE)
def test_only_resolve_creates_meshes_and_models(name):
    assert set(modules_that_call(name)) == {"resolve.py"} | ONLY_HERE[name]


def test_a_run_has_numbers_for_all_sizes_and_a_policy_for_each_parameter():
    config = parse_config(get_config())
    run = resolve_run(config, 512)
    assert run.mesh.size == len(jax.devices())
    assert run.config.mesh.fsdp > 0 and run.config.train.accumulation_steps > 0
    shapes = jax.eval_shape(run.model.init, jax.random.key(0), one_token_batch())["params"]
    assert jax.tree.structure(shapes) == jax.tree.structure(run.policies)


def test_other_batches_keep_the_model_and_the_devices():
    run = resolve_run(parse_config(get_config()), 512)
    given = get_config()
    given.batching.rows *= 2
    larger = run.with_batches_of(parse_config(given))
    assert larger.rows.rows == 2 * run.rows.rows
    assert (larger.mesh, larger.model, larger.policies) == (run.mesh, run.model, run.policies)
    given.batching.rows = 3 * len(jax.devices())
    given.train.accumulation_steps = 2
    with pytest.raises(ConfigError, match=r"config\.batching\.rows: found"):
        run.with_batches_of(parse_config(given))


def test_arms_without_a_share_are_not_trained():
    """Such an arm is only measured, so no prompt has its format by default."""
    config = get_config()
    config.objectives.arms = {
        "a": {"objective": "prefix_lm", "weight": 0.0},
        "b": {"objective": "causal_lm"},
        "c": {"objective": "copying"},
    }

    def trained(**bandit):
        config.bandit.update(bandit)
        return [arm.name for arm in trained_arms(parse_config(config))]

    assert trained(policy="fixed") == ["b", "c"]
    assert trained(policy="uniform") == trained(policy="birdie") == ["a", "b", "c"]
    assert trained(policy="staged", stages="0: copying=1") == ["c"]
    assert trained(policy="staged", stages="0: copying=1; 0.5: prefix_lm=1") == ["a", "c"]


def test_an_unknown_hook_is_refused_before_the_text_is_prepared():
    config = parse_config(get_config())
    find_parts(config)
    wrong = dataclasses.replace(config, train=dataclasses.replace(config.train, hooks="nothing"))
    with pytest.raises(ConfigError, match=r"^config\.train\.hooks: found 'nothing'; allowed: names of "):
        find_parts(wrong)
