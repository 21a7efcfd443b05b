"""A pruned prefill reads the tokens that it reports, and no dropped tokens."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birdie_jax.errors import PruningError
from birdie_jax.generation import Generator, Prompt
from birdie_jax.generation.prompt import pad_prompts
from birdie_jax.models import LanguageModel
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.layer_stacks import Block
from birdie_jax.models.layout import causal_layout, packed_layout
from birdie_jax.pruning import PruningSettings, parse_pruning, pruned_hidden
from birdie_jax.pruning.pruned_prefill import PromptRows, check_traced, layer_lengths
from tests.generation.conftest import small_model
from tests.quick_jit import quick_jit

LAYERS = 3
# Near a decay of 1, the root in the RG-LRU magnifies rounding a thousand times.
TOLERANCE = {"rtol": 2e-2, "atol": 1e-2}


def prompt_rows(prompts, rows=None):
    padded = pad_prompts(prompts, rows or len(prompts))
    keys = jax.vmap(jax.random.key)(jnp.asarray([len(prompt.tokens) for prompt in prompts]))
    return PromptRows(
        jnp.asarray(padded.tokens), jnp.asarray(padded.segment_ids), jnp.asarray(padded.bidirectional), keys
    )


def some_prompts(*lengths):
    random = np.random.default_rng(1)

    def draw(count):
        return random.integers(256, 384, count).astype(np.int32)

    return [Prompt(draw(count), draw(1)) for count in lengths]


@cache
def program(model, settings):
    """Return the compiled prefill of a model, shared by all prompts of a shape."""

    @quick_jit
    def pruned(params, rows):
        cache = model.empty_cache(*rows.tokens.shape)
        return pruned_hidden(model, params, rows, cache, settings, protected=3)

    return pruned


def run(model, params, prompts, settings):
    return program(model, settings)(params, prompt_rows(prompts))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hawk", "gated_ssm_plus", "mamba", "mamba2"])
def test_upper_layers_match_dense_layers_on_the_survivors(name):
    """Each layer equals its block on the reported tokens, side by side."""
    model, params = small_model(name, layers=LAYERS)
    settings = PruningSettings(keep=0.2)
    (prompt,) = some_prompts(28)
    hidden, caches, read = run(model, params, [prompt], settings)
    rows = prompt_rows([prompt])
    lengths = layer_lengths(settings, LAYERS, rows.tokens.shape[1], 3)
    assert [layer.index.shape[1] for layer in read] == list(lengths)
    x = model.apply(
        {"params": params}, rows.tokens, packed_layout(rows.segment_ids, rows.bidirectional), method="embed"
    )
    stream, places = np.asarray(x)[0], np.arange(x.shape[1])
    empty = jax.tree.map(lambda leaf: leaf[0], model.empty_cache(1, 1))
    block = quick_jit(Block(model.config).apply)
    for number, layer in enumerate(read):
        kept = np.asarray(layer.index[0])[np.asarray(layer.segment_ids[0]) > 0]
        assert np.all(np.diff(kept) > 0)
        stream = stream[np.isin(places, kept)]
        places = kept
        context = jnp.asarray(np.asarray(rows.bidirectional[0])[kept])[None]
        layout = packed_layout(jnp.ones((1, len(kept)), jnp.int32), context)
        of_layer = jax.tree.map(lambda leaf, number=number: leaf[number], params["blocks"])
        out, cache = block({"params": of_layer}, jnp.asarray(stream)[None], empty, layout)
        stream = np.asarray(out)[0]
        for found, expected in zip(jax.tree.leaves(caches), jax.tree.leaves(cache), strict=True):
            np.testing.assert_allclose(found[number], expected, **TOLERANCE)
    last = model.apply({"params": params}, jnp.asarray(stream)[None], method=LanguageModel.normalise)
    np.testing.assert_allclose(hidden[0, -1], last[0, -1], **TOLERANCE)
    assert {0, *range(28, 30)} <= set(places - (rows.tokens.shape[1] - 30)), "first, start and prefix stay"
    expected_count = max(3, int((1 - 0.8 * (LAYERS - 1) / LAYERS) * 30 + 0.5))
    assert len(places) == expected_count


# Each layer has its own length, so a program takes seconds to compile; one case is in the fast tier.
@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "policy"),
    [("hawk", policy) for policy in ("influence", "random", "uniform")]
    + [("mamba", "influence"), ("mamba2", "influence")],
)
def test_pruning_does_not_depend_on_the_batch(name, policy):
    model, params = small_model(name, layers=LAYERS)
    settings = PruningSettings(keep=0.3, policy=policy)
    prompts = some_prompts(28, 7, 17, 0)
    together, _, _ = run(model, params, prompts, settings)
    for number, prompt in enumerate(prompts):
        alone, _, _ = run(model, params, [prompt], settings)
        np.testing.assert_allclose(together[number, -1], alone[0, -1], **TOLERANCE)


def test_a_prompt_shrinks_beside_one_with_many_protected_tokens():
    model, params = small_model("gated_ssm", layers=LAYERS)
    short, long = some_prompts(28, 60)
    rows = prompt_rows([short, Prompt(short.context[:0], long.context)])
    prefill = partial(pruned_hidden, model, settings=PruningSettings(0.5, "recency"), protected=64)
    _, _, read = quick_jit(prefill)(params, rows, model.empty_cache(*rows.tokens.shape))
    assert [layer.index.shape[1] for layer in read] == [64, 64, 64]
    assert [int((layer.segment_ids[0] > 0).sum()) for layer in read] == [30, 25, 20]


@pytest.mark.slow
def test_decoding_continues_from_the_survivors():
    """Decoding after a pruned prefill equals one pass in which further tokens stay."""
    model, params = small_model("gated_ssm_plus", layers=LAYERS)
    settings = PruningSettings(keep=0.3, policy="recency")
    (prompt,) = some_prompts(30)
    more = np.array([300, 301], np.int32)
    _, cache, _ = run(model, params, [prompt], settings)
    decode = quick_jit(partial(model.apply, method=LanguageModel.hidden))
    found, _ = decode({"params": params}, jnp.asarray(more)[None], causal_layout(1, 2), cache)
    # With recency the last tokens of the context stay; their number depends on the schedule.
    longer = prompt._replace(target_prefix=np.concatenate([prompt.target_prefix, more]))
    shares = settings.layer_shares(LAYERS)
    counts = [int(share * 32 + 0.5) + 2 for share in shares]
    expected, _, read = run(
        model, params, [longer], PruningSettings(policy="recency", shares=tuple(c / 34 for c in counts))
    )
    assert [int((np.asarray(layer.segment_ids) > 0).sum()) for layer in read] == counts
    np.testing.assert_allclose(found[0, -1], expected[0, -1], **TOLERANCE)


@pytest.mark.slow
def test_dropped_tokens_do_not_affect_upper_layers():
    model, params = small_model("gated_ssm", layers=LAYERS, bidirectional=False)
    settings = PruningSettings(policy="recency", schedule="constant", keep=0.3)
    (prompt,) = some_prompts(28)
    other = prompt._replace(context=prompt.context.copy())
    other.context[5] = 256 + (other.context[5] - 255) % 128
    (_, one, read), (_, two, _) = (run(model, params, [p], settings) for p in (prompt, other))
    assert np.abs(np.asarray(one.state[0]) - np.asarray(two.state[0])).max() > 1e-6, (
        "the first layer reads it"
    )
    place = read[0].index.shape[1] - 30 + 5
    assert place not in np.asarray(read[1].index)


def test_settings_are_refused_by_name():
    for wrong, message in {
        "keep": (0.0, "keep: found 0.0; allowed: above 0, at most 1"),
        "policy": ("loudest", "policy: found 'loudest'; allowed: influence, entry_norm"),
        "schedule": ("steep", "schedule: found 'steep'; allowed: linear, constant"),
        "norm": ("entry", "norm: found 'entry'; allowed: absolute, signed, l2"),
        "readout": ("x", "readout: found 'x'"),
        "directions": ("x", "directions: found 'x'"),
    }.items():
        with pytest.raises(PruningError, match=message[1]):
            PruningSettings(**{wrong: message[0]})
    with pytest.raises(PruningError, match=r"shares: found .* allowed: 3 shares"):
        PruningSettings(shares=(1.0, 0.5)).layer_shares(LAYERS)
    for wrong in ({"norm": "l2"}, {"directions": "both"}, {"policy": "entry_norm"}):
        with pytest.raises(PruningError, match=r"traces: found norm .* allowed: 'absolute' or None"):
            check_traced(PruningSettings(**wrong))
    check_traced(PruningSettings(policy="recency"))
    model, params = small_model("transformer", layers=2)
    with pytest.raises(PruningError, match="policy: found 'influence' for model 'transformer'"):
        run(model, params, some_prompts(9), PruningSettings(keep=0.5))


def test_settings_of_a_command():
    found = parse_pruning(0.2, ["policy=recency", "keep_first=false", "seed=3", "shares=1,0.5"])
    expected = PruningSettings(keep=0.2, policy="recency", keep_first=False, seed=3, shares=(1.0, 0.5))
    assert found == expected
    for wrong, message in {
        "speed=1": "pruning: found 'speed=1'; allowed: NAME=VALUE",
        "seed=x": "pruning: seed: found 'x'; allowed: a whole number",
        "keep_first=1": "pruning: keep_first: found '1'; allowed: true or false",
        "shares=1,a": "pruning: shares: found '1,a'; allowed: numbers joined by commas",
    }.items():
        with pytest.raises(PruningError, match=message):
            parse_pruning(0.5, [wrong])


@pytest.mark.slow
def test_generation_prunes_and_keep_1_is_dense():
    model, params = small_model("gated_ssm_plus", layers=LAYERS)
    prompts = some_prompts(40, 12)

    def answers(**pruning):
        generator = Generator(model, params, **pruning)
        chunks = generator.generate_chunks(prompts, [8, 8], [0, 0])
        found = [np.concatenate(parts).tolist() for parts in zip(*chunks, strict=True)]
        return found, generator

    dense, _ = answers()
    whole, generator = answers(pruning=PruningSettings(keep=1.0))
    assert whole == dense
    assert generator.pruning is None
    pruned, _ = answers(pruning=PruningSettings(keep=0.1, policy="random"))
    assert pruned != dense
    for section in (AttentionConfig(heads=4), AttentionConfig(heads=4, window=5)):
        with pytest.raises(PruningError, match="model 'transformer', which has attention"):
            Generator(*small_model("transformer", sections=(section,)), pruning=PruningSettings(keep=0.5))
