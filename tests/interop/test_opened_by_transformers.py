"""`transformers` opens the written folders and computes the same scores."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from birdie_jax.interop import read_huggingface, write_huggingface
from tests.interop.huggingface_folders import scores_of, write_random_folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mamba", "mamba2", "recurrent_gemma"])
def test_written_folders_have_the_same_scores_in_transformers(kind, tmp_path, torch_packages):
    read = read_huggingface(write_random_folder(tmp_path / "there", kind))
    rng = np.random.default_rng(5)
    # Large weights, so errors in biases, norms and decays show as much as errors in maps.
    params = jax.tree.map(
        lambda leaf: np.asarray(leaf) + 0.3 * rng.normal(size=leaf.shape).astype(np.float32), read.params
    )
    written = tmp_path / "written"
    write_huggingface(written, read.config, params, read.tokenizer)
    tokens = rng.integers(4, 250, (2, 37))
    files = tmp_path / "tokens.npy", tmp_path / "scores.npy"
    np.save(files[0], tokens)
    subprocess.run(
        [sys.executable, "-m", "tests.interop.transformers_scores", str(written), *map(str, files)],
        env=os.environ | {"PYTHONPATH": torch_packages, "HF_HUB_OFFLINE": "1"},
        check=True,
    )
    expected = np.load(files[1])
    found = scores_of(read.config, params, tokens + 256, read.tokenizer.vocab_size)
    found = found[..., 256 : 256 + expected.shape[-1]]
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(found, expected, rtol=3e-4, atol=3e-4 * np.abs(expected).max())
