"""Records the results of other implementations for test_oracles.py, which then does not need them.

    pip install torch==2.13.0 transformers==5.24.0
    python -m tests.models.record_oracles [mamba2 ...]

Records the RG-LRU, a Llama layer, and whole models of BERT with norms before the layers, Mamba, Mamba-2 and
RecurrentGemma, all of `transformers`, and a whole Gated DeltaNet built from its functions. Weights are
small and random. Each case is one file of arrays: inputs, outputs, and the gradients of sum(output *
cotangent) in the inputs and in every parameter. The first five cases were recorded with 5.23.0.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from transformers import (
    LlamaConfig,
    Mamba2Config,
    Mamba2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    RecurrentGemmaConfig,
    RecurrentGemmaForCausalLM,
    RobertaPreLayerNormConfig,
    RobertaPreLayerNormForMaskedLM,
)
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule
from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRglru

FOLDER = Path(__file__).with_name("recorded")
SEGMENTS = np.array([[1] * 5 + [2] * 4 + [0] * 1 + [3] * 2, [1] * 9 + [2] * 3])
CONTEXT = np.array([[1, 1, 1, 0, 0] + [0] * 4 + [0] + [1, 0], [1] * 6 + [0] * 3 + [0] * 3], bool)
LENGTH = SEGMENTS.shape[1]


def positions() -> np.ndarray:
    """Return each token's index within its sample."""
    begin = np.diff(SEGMENTS, axis=1, prepend=-1) != 0
    index = np.arange(LENGTH)
    return index - np.maximum.accumulate(np.where(begin, index, 0), axis=1)


def randomised(module: torch.nn.Module, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Set every parameter of `module` to random values of a typical size, and return them."""
    values = {}
    for name, parameter in module.named_parameters():
        size = 1.0 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
        values[name] = rng.normal(scale=size, size=parameter.shape).astype(np.float32)
        parameter.data = torch.tensor(values[name])
    return values


def record(name: str, module: torch.nn.Module, run, width: int) -> None:
    """Write the inputs, outputs and gradients of `run(x)`, which calls `module`."""
    rng = np.random.default_rng(0)
    parameters = randomised(module, rng)
    x, cotangent = rng.normal(size=(2, *SEGMENTS.shape, width)).astype(np.float32)
    inputs = torch.tensor(x, requires_grad=True)
    outputs = run(inputs)
    (outputs * torch.tensor(cotangent)).sum().backward()
    np.savez(
        FOLDER / f"{name}.npz",
        segment_ids=SEGMENTS.astype(np.int32),
        bidirectional=CONTEXT,
        x=x,
        cotangent=cotangent,
        y=outputs.detach().numpy(),
        dx=inputs.grad.numpy(),
        **{f"parameter/{key}": value for key, value in parameters.items()},
        **{f"gradient/{key}": value.grad.numpy() for key, value in module.named_parameters()},
    )


def record_rg_lru() -> None:
    """Record the RG-LRU of RecurrentGemma: two heads of four channels, resets in mid-sequence."""
    module = RecurrentGemmaRglru(RecurrentGemmaConfig(lru_width=8, num_attention_heads=2))
    # We treat padding as its own sample, so it begins with a reset.
    record("rg_lru", module, lambda x: module(x, torch.tensor(positions())), width=8)


def record_llama_layer() -> None:
    """Record a Llama layer with a gated MLP, the mask of a packed prefix LM, and 4 and 2 heads."""
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        hidden_act="gelu_pytorch_tanh",
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        attn_implementation="eager",
    )
    layer = LlamaDecoderLayer(config, layer_idx=0)
    mask = np.full((*SEGMENTS.shape, LENGTH), np.finfo(np.float32).min, np.float32)
    for row, segments in enumerate(SEGMENTS):
        for t in range(LENGTH):
            for s in range(LENGTH):
                together = segments[t] == segments[s] and segments[t] > 0
                both_in_context = CONTEXT[row, t] and CONTEXT[row, s]
                if t == s or (together and (s < t or both_in_context)):
                    mask[row, t, s] = 0
    where = torch.tensor(positions())

    def run(x):
        rotary = LlamaRotaryEmbedding(config)(x, where)
        return layer(x, attention_mask=torch.tensor(mask)[:, None], position_embeddings=rotary)

    record("llama_layer", layer, run, width=16)


def record_pre_layer_norm_bert() -> None:
    """Record the scores of a whole masked language model: BERT with norms before the layers."""
    unused = 15
    config = RobertaPreLayerNormConfig(
        vocab_size=24,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        type_vocab_size=2,
        layer_norm_eps=1e-12,
        hidden_act="gelu",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        # The rows of this ID in the tables of tokens and positions would have no gradient.
        pad_token_id=unused,
        attn_implementation="eager",
    )
    model = RobertaPreLayerNormForMaskedLM(config)
    rng = np.random.default_rng(0)
    parameters = randomised(model, rng)
    tokens = rng.integers(0, unused, SEGMENTS.shape)
    types = (np.arange(LENGTH)[None] % 3 == 0) * np.ones_like(SEGMENTS)
    # Padding is a single token, which we treat as its own sample.
    together = SEGMENTS[:, :, None] == SEGMENTS[:, None, :]
    mask = np.where(together, 0, np.finfo(np.float32).min).astype(np.float32)
    scores = model(
        input_ids=torch.tensor(tokens),
        attention_mask=torch.tensor(mask)[:, None],
        token_type_ids=torch.tensor(types),
        position_ids=torch.tensor(positions()),
    ).logits
    cotangent = rng.normal(size=tuple(scores.shape)).astype(np.float32)
    (scores * torch.tensor(cotangent)).sum().backward()
    np.savez(
        FOLDER / "pre_layer_norm_bert.npz",
        segment_ids=SEGMENTS.astype(np.int32),
        tokens=tokens.astype(np.int32),
        token_types=types.astype(np.int32),
        cotangent=cotangent,
        scores=scores.detach().numpy(),
        **{f"parameter/{key}": value for key, value in parameters.items()},
        **{f"gradient/{key}": value.grad.numpy() for key, value in model.named_parameters()},
    )


def record_mamba() -> None:
    """Record the scores of a whole Mamba with weights that make every part matter.

    With the usual initial values, steps are so small that D u dominates the scan, and parameters that start
    at one or zero have no effect. The embedding is small enough for the epsilon of the first norm to
    matter. This also records the folder of `save_pretrained`, in shards.
    """
    config = MambaConfig(
        vocab_size=24,
        hidden_size=8,
        num_hidden_layers=2,
        state_size=4,
        expand=2,
        time_step_rank=3,
        layer_norm_epsilon=1e-5,
    )
    model = MambaForCausalLM(config)
    rng = np.random.default_rng(0)
    parameters = randomised(model, rng)
    for name, parameter in model.named_parameters():
        if name.endswith("embeddings.weight"):
            parameters[name] = (0.02 * rng.normal(size=parameter.shape)).astype(np.float32)
        if name.endswith("dt_proj.bias"):
            steps = rng.uniform(0.05, 1, parameter.shape)
            parameters[name] = np.log(np.expm1(steps)).astype(np.float32)
        if name.endswith("x_proj.weight"):
            parameters[name] *= 2
        parameter.data = torch.tensor(parameters[name])
    tokens = rng.integers(0, 24, (2, LENGTH))
    scores = model(input_ids=torch.tensor(tokens), use_cache=False).logits
    cotangent = rng.normal(size=tuple(scores.shape)).astype(np.float32)
    (scores * torch.tensor(cotangent)).sum().backward()
    np.savez(
        FOLDER / "mamba.npz",
        tokens=tokens.astype(np.int32),
        cotangent=cotangent,
        scores=scores.detach().numpy(),
        **{f"parameter/{key}": value for key, value in parameters.items()},
        **{f"gradient/{key}": value.grad.numpy() for key, value in model.named_parameters()},
    )
    model.save_pretrained(FOLDER / "mamba", max_shard_size="3KB")
    (FOLDER / "mamba" / "generation_config.json").unlink()


def record_recurrent_gemma() -> None:
    """Record the scores of a whole RecurrentGemma with weights that make every part matter.

    Five layers are one period of its pattern and two layers of the next. The window is shorter than the
    texts, and scores reach the cap. This also records the folder of `save_pretrained`, in shards.
    """
    config = RecurrentGemmaConfig(
        vocab_size=24,
        # Their code rounds the root of this to bfloat16, which changes the scores.
        hidden_size=24,
        num_hidden_layers=5,
        intermediate_size=40,
        num_attention_heads=2,
        num_key_value_heads=1,
        lru_width=8,
        attention_window_size=3,
        logits_soft_cap=5.0,
    )
    model = RecurrentGemmaForCausalLM(config).eval()
    rng = np.random.default_rng(0)
    parameters = randomised(model, rng)
    for name, parameter in model.named_parameters():
        if name.endswith("embed_tokens.weight"):
            parameters[name] = (0.3 * rng.normal(size=parameter.shape)).astype(np.float32)
        if name.endswith("recurrent_param"):
            # Memories of one to about ten tokens.
            parameters[name] = rng.uniform(-4, -0.5, parameter.shape).astype(np.float32)
        parameter.data = torch.tensor(parameters[name])
    tokens = rng.integers(0, 24, (2, LENGTH))
    scores = model(input_ids=torch.tensor(tokens), use_cache=False).logits
    cotangent = rng.normal(size=tuple(scores.shape)).astype(np.float32)
    (scores * torch.tensor(cotangent)).sum().backward()
    np.savez(
        FOLDER / "recurrent_gemma.npz",
        tokens=tokens.astype(np.int32),
        cotangent=cotangent,
        scores=scores.detach().numpy(),
        **{f"parameter/{key}": value for key, value in parameters.items()},
        **{f"gradient/{key}": value.grad.numpy() for key, value in model.named_parameters()},
    )
    model.save_pretrained(FOLDER / "recurrent_gemma", max_shard_size="20KB")
    (FOLDER / "recurrent_gemma" / "generation_config.json").unlink()


def record_scores(name: str, scores, tokens, parameters: dict, named, rng) -> None:  # noqa: PLR0917
    """Write tokens, scores and the gradients of sum(scores * cotangent)."""
    cotangent = rng.normal(size=tuple(scores.shape)).astype(np.float32)
    (scores * torch.tensor(cotangent)).sum().backward()
    np.savez(
        FOLDER / f"{name}.npz",
        tokens=tokens.astype(np.int32),
        cotangent=cotangent,
        scores=scores.detach().numpy(),
        **{f"parameter/{key}": value for key, value in parameters.items()},
        **{f"gradient/{key}": value.grad.numpy() for key, value in named},
    )


def record_mamba2() -> None:
    """Record the scores of a whole Mamba-2 with two groups, and its folder, in shards."""
    config = Mamba2Config(
        vocab_size=24,
        hidden_size=8,
        num_hidden_layers=2,
        num_heads=4,
        head_dim=4,
        state_size=3,
        n_groups=2,
        expand=2,
        chunk_size=4,
        layer_norm_epsilon=1e-5,
        bos_token_id=0,
        pad_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=True,
    )
    model = Mamba2ForCausalLM(config)
    rng = np.random.default_rng(0)
    parameters = randomised(model, rng)
    tokens = rng.integers(0, 24, (2, LENGTH))
    scores = model(input_ids=torch.tensor(tokens), use_cache=False).logits
    record_scores("mamba2", scores, tokens, parameters, model.named_parameters(), rng)
    model.save_pretrained(FOLDER / "mamba2", max_shard_size="3KB")
    (FOLDER / "mamba2" / "generation_config.json").unlink()


def gated_deltanet_scores(weights: dict[str, torch.Tensor], tokens, key_heads: int, heads: int):
    """Return the scores of a Gated DeltaNet from weights named as in flash-linear-attention."""

    def norm(x, name):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weights[name]

    def convolved(x, layer, name):
        kernel = weights[f"{layer}.attn.{name}_conv1d.weight"]
        mapped = functional.linear(x, weights[f"{layer}.attn.{name}_proj.weight"]).transpose(1, 2)
        padded = functional.pad(mapped, (kernel.shape[-1] - 1, 0))
        return functional.silu(functional.conv1d(padded, kernel, groups=len(kernel)).transpose(1, 2))

    x = weights["model.embeddings.weight"][tokens]
    for number in range(2):
        layer = f"model.layers.{number}"
        normed = norm(x, f"{layer}.attn_norm.weight")
        q, k, v = (
            convolved(normed, layer, name).unflatten(-1, (count, -1))
            for name, count in (("q", key_heads), ("k", key_heads), ("v", heads))
        )
        q, k = (array.repeat_interleave(heads // key_heads, dim=2) for array in (q, k))
        rate = weights[f"{layer}.attn.A_log"].exp()
        steps = functional.linear(normed, weights[f"{layer}.attn.a_proj.weight"])
        g = -rate * functional.softplus(steps + weights[f"{layer}.attn.dt_bias"])
        beta = 2 * functional.linear(normed, weights[f"{layer}.attn.b_proj.weight"]).sigmoid()
        o, _ = torch_recurrent_gated_delta_rule(
            *(q, k, v),
            g=g,
            beta=beta,
            initial_state=None,
            output_final_state=False,
            use_qk_l2norm_in_kernel=True,
        )
        gate = functional.linear(normed, weights[f"{layer}.attn.g_proj.weight"])
        gated = norm(o, f"{layer}.attn.o_norm.weight").flatten(2) * functional.silu(gate)
        x = x + functional.linear(gated, weights[f"{layer}.attn.o_proj.weight"])
        normed = norm(x, f"{layer}.mlp_norm.weight")
        hidden = functional.silu(functional.linear(normed, weights[f"{layer}.mlp.gate_proj.weight"]))
        hidden = hidden * functional.linear(normed, weights[f"{layer}.mlp.up_proj.weight"])
        x = x + functional.linear(hidden, weights[f"{layer}.mlp.down_proj.weight"])
    return functional.linear(norm(x, "model.norm.weight"), weights["lm_head.weight"])


def record_gated_deltanet() -> None:
    """Record a whole Gated DeltaNet: two key heads, four value heads, negative eigenvalues."""
    features, inner, key_heads, heads, d_k, d_v = 8, 12, 2, 4, 3, 6
    keys, values = key_heads * d_k, heads * d_v
    shapes = {"model.embeddings.weight": (24, features), "model.norm.weight": (features,)}
    shapes["lm_head.weight"] = (24, features)
    for number in range(2):
        widths = {"q": keys, "k": keys, "v": values, "g": values, "a": heads, "b": heads}
        attention = {f"{name}_proj.weight": (width, features) for name, width in widths.items()}
        attention |= {f"{name}_conv1d.weight": (widths[name], 1, 4) for name in "qkv"}
        attention |= {"A_log": (heads,), "dt_bias": (heads,), "o_norm.weight": (d_v,)}
        attention["o_proj.weight"] = (features, values)
        mlp = {"gate_proj": (inner, features), "up_proj": (inner, features), "down_proj": (features, inner)}
        shapes |= {f"model.layers.{number}.attn.{name}": shape for name, shape in attention.items()}
        shapes |= {f"model.layers.{number}.mlp.{name}.weight": shape for name, shape in mlp.items()}
        shapes |= {f"model.layers.{number}.{name}_norm.weight": (features,) for name in ("attn", "mlp")}
    rng = np.random.default_rng(0)
    parameters = {
        name: rng.normal(scale=1.0 if len(shape) == 1 else shape[-1] ** -0.5, size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    weights = {name: torch.tensor(value, requires_grad=True) for name, value in parameters.items()}
    tokens = rng.integers(0, 24, (2, LENGTH))
    scores = gated_deltanet_scores(weights, torch.tensor(tokens), key_heads, heads)
    record_scores("gated_deltanet", scores, tokens, parameters, weights.items(), rng)


RECORDED = {
    "rg_lru": record_rg_lru,
    "llama_layer": record_llama_layer,
    "pre_layer_norm_bert": record_pre_layer_norm_bert,
    "mamba": record_mamba,
    "recurrent_gemma": record_recurrent_gemma,
    "mamba2": record_mamba2,
    "gated_deltanet": record_gated_deltanet,
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for case in sys.argv[1:] or RECORDED:
        RECORDED[case]()
