"""Writes what the functions of `transformers` compute, for test_transformers.py.

    PYTHONPATH=$BIRDIE_TORCH python -m tests.pallas_kernels.matrix_state.record_oracles

Inputs, outputs, last states, and the gradients of sum(outputs * cotangent) in the inputs. The recorded ones
are of seed 0; `--seed` and `--folder` make others, as the slow test does.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from transformers.models.kimi_linear.modeling_kimi_linear import recurrent_kimi_delta_attention
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan
from transformers.models.qwen3_next.modeling_qwen3_next import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

RECORDED = Path(__file__).with_name("recorded")
BATCH, LENGTH, HEADS, D_K, D_V = 2, 21, 2, 4, 6


def delta_rule_inputs(by_channel: bool, seed: int) -> dict[str, np.ndarray]:
    """Return keys of norm 1, queries, values, decays, beta and a first state."""
    rng = np.random.default_rng(seed)
    q, k = rng.normal(size=(2, BATCH, LENGTH, HEADS, D_K))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    g = -np.exp(rng.normal(size=(BATCH, LENGTH, HEADS, *(D_K,) * by_channel)) - 1)
    values = {
        "q": q,
        "k": k,
        "v": rng.normal(size=(BATCH, LENGTH, HEADS, D_V)),
        "g": g,
        "beta": rng.uniform(0, 1, (BATCH, LENGTH, HEADS)),
        "initial_state": rng.normal(size=(BATCH, HEADS, D_K, D_V)),
    }
    return {name: value.astype(np.float32) for name, value in values.items()}


def ssd_inputs(seed: int) -> dict[str, np.ndarray]:
    """Return the inputs of Mamba-2's scan, with two groups."""
    rng = np.random.default_rng(seed + 1)
    heads, groups = 4, 2
    values = {
        "x": rng.normal(size=(BATCH, LENGTH, heads, D_V)),
        "dt": rng.normal(size=(BATCH, LENGTH, heads)),
        "A": -np.exp(rng.normal(size=heads)),
        "B": rng.normal(size=(BATCH, LENGTH, groups, D_K)),
        "C": rng.normal(size=(BATCH, LENGTH, groups, D_K)),
        "D": rng.normal(size=heads),
        "dt_bias": rng.normal(size=heads),
        "initial_state": rng.normal(size=(BATCH, heads, D_V, D_K)),
    }
    return {name: value.astype(np.float32) for name, value in values.items()}


def record(file: Path, inputs: dict[str, np.ndarray], run) -> None:
    """Write the inputs, the outputs of `run`, and the gradients."""
    tensors = {key: torch.tensor(value, requires_grad=True) for key, value in inputs.items()}
    outputs, state = run(**tensors)
    cotangent = np.random.default_rng(2).normal(size=tuple(outputs.shape)).astype(np.float32)
    (outputs * torch.tensor(cotangent)).sum().backward()
    np.savez(
        file,
        cotangent=cotangent,
        outputs=outputs.detach().numpy(),
        state=state.detach().numpy(),
        **{f"input/{key}": value for key, value in inputs.items()},
        **{f"gradient/{key}": tensor.grad.numpy() for key, tensor in tensors.items()},
    )


def delta_rule(function):
    """Return `run` for a function of `transformers`, which divides q by sqrt(d_k)."""

    def run(q, k, v, g, beta, initial_state):  # noqa: PLR0917
        return function(
            *(q * D_K**0.5, k, v),
            g=g,
            beta=beta,
            initial_state=initial_state,
            output_final_state=True,
            use_qk_l2norm_in_kernel=False,
        )

    return run


def scan(x, dt, A, B, C, D, dt_bias, initial_state):  # noqa: PLR0917
    """Run Mamba-2's scan in chunks of four tokens."""
    return mamba2_chunk_scan(
        *(x, dt, A, B, C),
        chunk_size=4,
        D=D,
        dt_bias=dt_bias,
        initial_states=initial_state,
        dt_softplus=True,
        return_final_states=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=RECORDED)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder, seed = options.folder, options.seed
    folder.mkdir(exist_ok=True)
    by_head, by_channel = delta_rule_inputs(False, seed), delta_rule_inputs(True, seed)
    record(folder / "recurrent.npz", by_head, delta_rule(torch_recurrent_gated_delta_rule))
    record(folder / "chunk.npz", by_head, delta_rule(torch_chunk_gated_delta_rule))
    record(folder / "kimi.npz", by_channel, delta_rule(recurrent_kimi_delta_attention))
    record(folder / "ssd.npz", ssd_inputs(seed), scan)


if __name__ == "__main__":
    main()
