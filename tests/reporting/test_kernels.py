"""Kernels from parameters match the layers' outputs, and plots scale them."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.errors import ConfigError
from birdie_jax.models.encoder_config import EncoderConfig
from birdie_jax.models.layout import packed_layout
from birdie_jax.models.s4d import S4D
from birdie_jax.reporting.kernels import LayerKernels, draw_curves, draw_maps, layer_kernels, scaled
from tests.pages.verbs import parsed

LENGTH = 12


@pytest.mark.slow
def test_a_kernel_is_the_impulse_response_of_its_layer():
    """Except D, which the response has at the token itself."""
    section = EncoderConfig(ssm_state=4, ssm_heads=2)
    layout = packed_layout(jnp.ones((1, 2 * LENGTH - 1), jnp.int32), jnp.ones((1, 2 * LENGTH - 1), bool))
    impulse = jnp.zeros((1, 2 * LENGTH - 1, 2)).at[0, LENGTH - 1].set(1)
    params, answers = {}, {}
    for seed, way in enumerate(("forward", "backward")):
        layer = S4D(section, way == "backward", jnp.dtype("float32"))
        variables = [layer.init(jax.random.key(10 * seed + number), impulse, layout) for number in range(2)]
        params[f"{way}_ssm"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *variables)["params"]
        outputs = np.stack([layer.apply(one, impulse, layout)[0].T for one in variables])
        d = np.stack([one["params"]["D"] for one in variables])
        outputs[:, :, LENGTH - 1] -= d
        answers[way] = outputs[:, :, LENGTH - 1 :] if way == "forward" else outputs[:, :, LENGTH - 1 :: -1]
        others = outputs[:, :, : LENGTH - 1] if way == "forward" else outputs[:, :, LENGTH:]
        assert (others == 0).all()
    found = layer_kernels({"blocks": {"mixer": {"routing": params}}}, LENGTH)
    np.testing.assert_allclose(found.forward, answers["forward"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.backward, answers["backward"], rtol=1e-4, atol=1e-5)


def test_a_model_without_such_layers_is_refused():
    with pytest.raises(ConfigError) as error:
        layer_kernels({"blocks": {"mixer": {"attention": {}}}}, 4)
    assert str(error.value) == (
        "params: found a model without state-space layers; allowed: bigs, stack_ssm"
    )


@pytest.mark.parametrize("layer", ["2", "9", "-1", "first"])
def test_a_missing_layer_is_refused(tmp_path, monkeypatch, capsys, layer):
    kernels = LayerKernels(np.ones((2, 1, 3), np.float32), np.ones((2, 1, 3), np.float32))
    output = tmp_path / "a.svg"

    def draw(layers):
        flags = ["--workdir=run", f"--output={output}", f"--layers={layers}"]
        with parsed("draw_kernels", flags, whole=True) as verb:
            monkeypatch.setattr(verb, "model_of_workdir", lambda _: SimpleNamespace(params={}))
            monkeypatch.setattr(verb, "layer_kernels", lambda *_: kernels)
            verb.main(["draw_kernels"])

    with pytest.raises(ConfigError) as refused:
        draw(f"1,{layer}")
    assert str(refused.value) == f"--layers: found {layer}; allowed: 0 to 1, the layers of run"
    assert not output.exists()
    draw("1")
    assert output.exists() and capsys.readouterr().out == f"{output}\n"


def test_maps_are_scaled_within_a_layer_and_read_from_left_to_right():
    forward = np.array([[[1.0, -4.0, 0.0]], [[2.0, 2.0, 2.0]]], np.float32)
    backward = np.array([[[0.5, 2.0, 1.0]], [[2.0, 2.0, 2.0]]], np.float32)
    kernels = LayerKernels(forward, backward)
    np.testing.assert_allclose(scaled(kernels), [[0, 1, 0.25, 0.125, 0.5, 0.25], [0] * 6])
    maps = draw_maps({"one": kernels, "other": kernels})
    assert [axes.get_title() for axes in maps.axes] == ["one", "other"]
    np.testing.assert_array_equal(maps.axes[0].images[0].get_array(), scaled(kernels))
    (first, second) = draw_curves({"one": kernels}, [1, 0]).axes
    assert (first.get_ylabel(), second.get_ylabel()) == ("layer 1", "layer 0")
    before, after = second.lines
    np.testing.assert_array_equal(before.get_xydata(), [[0, 1], [-1, -4], [-2, 0]])
    np.testing.assert_array_equal(after.get_xydata(), [[0, 0.5], [1, 2], [2, 1]])
