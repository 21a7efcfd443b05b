"""`transformers` opens the written folders and computes the same scores."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from birdie_jax.interop import read_huggingface, write_huggingface
from tests.interop.huggingface_folders import scores_of, write_random_folder


def write_model(folder, kind):
    """Write folder/kind and the tokens of folder/kind.npy, and return our scores."""
    read = read_huggingface(write_random_folder(folder / f"{kind} there", kind))
    rng = np.random.default_rng(5)
    # Large weights, so errors in biases, norms and decays show as much as errors in maps.
    params = jax.tree.map(
        lambda leaf: np.asarray(leaf) + 0.3 * rng.normal(size=leaf.shape).astype(np.float32), read.params
    )
    write_huggingface(folder / kind, read.config, params, read.tokenizer)
    tokens = rng.integers(4, 250, (2, 37))
    np.save(folder / f"{kind}.npy", tokens)
    return scores_of(read.config, params, tokens + 256, read.tokenizer.vocab_size)


@pytest.mark.slow
def test_written_folders_have_the_same_scores_in_transformers(tmp_path, torch_packages):
    scores = {kind: write_model(tmp_path, kind) for kind in ("mamba", "mamba2", "recurrent_gemma")}
    subprocess.run(
        [sys.executable, "-m", "tests.interop.transformers_scores", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": torch_packages, "HF_HUB_OFFLINE": "1"},
        check=True,
    )
    for kind, ours in scores.items():
        expected = np.load(tmp_path / f"{kind}.scores.npy")
        found = ours[..., 256 : 256 + expected.shape[-1]]
        assert np.abs(expected).max() > 1
        tolerance = 3e-4 * np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=3e-4, atol=tolerance, err_msg=kind)
