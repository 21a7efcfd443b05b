"""Masked LM in the train step: the gathered loss and its cost, packing, dropout and gradients."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from birdie_jax.batching.packing import empty_rows, pack_rows, packed_length
from birdie_jax.config import ModelConfig
from birdie_jax.engine import TrainState
from birdie_jax.engine.sharded_step import take_step
from birdie_jax.models import build_model
from birdie_jax.models.attention import AttentionConfig
from birdie_jax.models.encoder_config import EncoderConfig
from birdie_jax.models.hawk import HawkConfig
from birdie_jax.models.layout import batch_layout
from birdie_jax.models.predictions import predict_targets
from birdie_jax.objectives import NO_LABEL, Example, make_objective
from birdie_jax.pretraining.language_model_step import arm_sums, language_model_loss
from tests.quick_jit import quick_jit

LENGTH, VOCAB, ARMS, SPACING = 48, 384, 3, 3
# The number of text tokens of each sample; the arms alternate.
ROWS = ((43,), (8, 30), (10, 9, 9), (20,))
OBJECTIVE = make_objective("masked_lm", num_pieces=VOCAB - 256)
MOST = OBJECTIVE.max_loss_positions(LENGTH, SPACING)
ENCODER = EncoderConfig(positions=128, ssm_state=4)
DESCENT = optax.sgd(1.0)


def make_model(name="gated_ssm", vocab=VOCAB, encoder=ENCODER, **fields):
    sizes = {"layers": 1, "features": 16, "state": 16, "mlp_features": 16, "dtype": "float32"}
    sections = (HawkConfig(heads=4), AttentionConfig(heads=4, kv_heads=2), encoder)
    return build_model(ModelConfig(name=name, remat="none", sections=sections, **sizes | fields), vocab)


def masked_rows(rows=ROWS):
    random = np.random.default_rng(0)
    examples, arm = [], 0
    for row in rows:
        examples.append([])
        for count in row:
            made = OBJECTIVE.build(random.integers(256, VOCAB, count), random)
            examples[-1].append(Example(made.context, made.target, arm % 2, made.labels))
            arm += 1
    return examples


@pytest.fixture(scope="module")
def batch():
    return jax.tree.map(jnp.asarray, pack_rows(masked_rows(), LENGTH, SPACING))


@pytest.fixture(scope="module")
def params(batch):
    return quick_jit(make_model().init)(jax.random.key(0), batch)["params"]


def stepped(params, batch, *, parts=1, most=MOST, chunk=8, rate=0.0, step=0):
    loss = language_model_loss(make_model(dropout=rate), ARMS, chunk, most)
    compiled = quick_jit(partial(take_step, loss, DESCENT, parts))
    return compiled(TrainState(jnp.int32(step), params, DESCENT.init(params), {}), batch)


@pytest.fixture(scope="module")
def whole(params, batch):
    """The step with the head on every position."""
    return stepped(params, batch, most=None)


# Room for 7 positions in one chunk, or for 9 in chunks of 3.
@pytest.mark.sampled
@pytest.mark.parametrize(("parts", "chunk"), [(1, 8), (2, 3)])
def test_the_gathered_loss_and_gradient_equal_the_whole_ones(params, batch, whole, parts, chunk):
    assert MOST == 7 < LENGTH / 4
    state, metrics = stepped(params, batch, parts=parts, chunk=chunk)
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, metrics, whole[1])
    jax.tree.map(close, state.params, whole[0].params)
    assert metrics.sums["tokens"].tolist() == [6 + 4 + 1 + 3, 1 + 2 + 1, 0]


@pytest.fixture(scope="module")
def encoder(batch):
    """BiGS and its parameters, with a nonzero bias for every score."""
    model = make_model("bigs")
    params = quick_jit(model.init)(jax.random.key(0), batch)["params"]
    bias = jax.random.normal(jax.random.key(1), params["scores_bias"].shape)
    return model, {**params, "scores_bias": bias}


@pytest.mark.slow
def test_an_encoders_gathered_loss_and_gradient_equal_the_whole_ones(encoder, batch):
    """The head's transform and bias are also computed only on the masked positions."""
    model, params = encoder

    def found(most):
        loss = language_model_loss(model, ARMS, 8, most).sums
        return quick_jit(jax.grad(lambda params: loss(params, batch), has_aux=True))(params)

    gradient, sums = found(MOST)
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    jax.tree.map(close, (gradient, sums), found(None))
    for name in ("scores_bias", "head_transform", "head_norm"):
        assert all(np.abs(leaf).max() > 1e-2 for leaf in jax.tree.leaves(gradient[name]))


@pytest.mark.slow
def test_an_encoders_predictions_equal_those_from_all_scores(encoder, batch):
    model, params = encoder
    found = quick_jit(partial(predict_targets, model, MOST))(params, batch)
    scores = np.asarray(quick_jit(model.apply)({"params": params}, batch), np.float64)
    probabilities = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    for row, mask in enumerate(np.asarray(batch.loss_mask)):
        (places,) = np.nonzero(mask)
        own, labels = probabilities[row, places], np.asarray(batch.targets)[row, places]
        count = len(places)
        np.testing.assert_array_equal(found.index[row, :count], places)
        np.testing.assert_array_equal(found.tokens[row, :count], own.argmax(-1))
        np.testing.assert_allclose(found.probabilities[row, :count], own.max(-1), rtol=1e-5)
        losses = -np.log(own[np.arange(count), labels])
        np.testing.assert_allclose(found.losses[row, :count], losses, rtol=1e-5)


def test_the_loss_is_the_mean_over_all_masked_positions_of_the_batch(params, batch, whole):
    scores = jax.nn.log_softmax(quick_jit(make_model().apply)({"params": params}, batch))
    losses = [
        -float(scores[row, place, batch.targets[row, place]])
        for row, place in zip(*np.nonzero(batch.loss_mask), strict=True)
    ]
    assert whole[1].loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert whole[1].weight == len(losses) == 18


def test_what_is_off_the_mask_is_never_read(params, batch):
    other = batch._replace(targets=jnp.where(batch.loss_mask, batch.targets, 300))
    sums = quick_jit(partial(arm_sums, make_model(), ARMS, 8, max_loss_positions=MOST))
    jax.tree.map(np.testing.assert_array_equal, sums(params, other), sums(params, batch))


@pytest.mark.slow
def test_too_many_loss_positions_make_the_loss_nan(params, batch):
    sums = quick_jit(partial(arm_sums, make_model(), ARMS, 8, max_loss_positions=4))(params, batch)
    # Rows 0 and 1 have more than 4 masked positions and contain both arms.
    assert np.isnan(sums.loss[:2]).all()
    assert sums.loss[2] == 0


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["gated_ssm", "bigs", "stack_attention"])
def test_a_batch_of_only_padding_has_no_effect(name, batch):
    """This holds even if only a tiny epsilon keeps the variance of normalised values above 0."""
    model = make_model(name, norm_epsilon=1e-12)
    params = quick_jit(model.init)(jax.random.key(0), batch)["params"]
    padding = jax.tree.map(jnp.asarray, empty_rows(4, LENGTH))
    step = quick_jit(partial(take_step, language_model_loss(model, ARMS, 8, MOST), DESCENT, 1))
    state, metrics = step(TrainState(jnp.int32(0), params, DESCENT.init(params), {}), padding)
    assert (metrics.loss, metrics.grad_norm) == (0, 0)
    jax.tree.map(np.testing.assert_array_equal, state.params, params)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), [("bigs", "chunked"), ("stack_ssm", "toeplitz")])
def test_neither_packing_nor_padding_changes_a_gradient(name, form):
    """Compares a row of samples with one row per sample, which have more padding."""
    model = make_model(name, encoder=replace(ENCODER, ssm_form=form, ssm_chunk=7, embedding_dropout=0.0))
    (examples,) = masked_rows(((10, 9, 9),))
    loss = language_model_loss(model, ARMS, 8, MOST)

    @quick_jit
    def gradient(params, batch):
        return jax.grad(lambda params: loss.sums(params, batch)[0])(params)

    def rows(examples):
        return jax.tree.map(jnp.asarray, pack_rows(examples, LENGTH, SPACING))

    packed, alone = rows([examples]), rows([[example] for example in examples])
    params = quick_jit(model.init)(jax.random.key(0), packed)["params"]
    # Scale up the small initial weights, so differences exceed rounding.
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf * 10 if path[-1].key in ("kernel", "embedding") else leaf, params
    )
    found, expected = gradient(params, packed), gradient(params, alone)

    def close(path, one, other):
        largest = np.abs(other).max()
        assert largest > 1e-6, path
        np.testing.assert_allclose(
            one, other, atol=1e-4 * largest, rtol=0, err_msg=jax.tree_util.keystr(path)
        )

    jax.tree_util.tree_map_with_path(close, found, expected)


def test_masked_lm_and_prefix_lm_share_a_row(params):
    """In a mixture of both objectives, the head covers all positions."""
    (masked,) = masked_rows(((20,),))[0]
    tokens = np.arange(260, 280, dtype=np.int32)
    both = [masked, Example(tokens[:8], tokens[8:], 2)]
    batch = jax.tree.map(jnp.asarray, pack_rows([both], LENGTH, SPACING))
    sums = quick_jit(partial(arm_sums, make_model(), ARMS, 8))
    together = sums(params, batch)
    for example in both:
        row = jax.tree.map(jnp.asarray, pack_rows([[example]], LENGTH, SPACING))
        alone = sums(params, row)
        np.testing.assert_allclose(together.loss[example.arm], alone.loss[example.arm], rtol=1e-5)
        assert together.tokens[example.arm] == alone.tokens[example.arm] > 0


@pytest.mark.slow
def test_the_gathered_head_takes_less_than_a_quarter_of_the_work():
    """Measured in FLOPs of the compiled gradient; only the head grows with the vocabulary."""
    length, most = 128, OBJECTIVE.max_loss_positions(128, SPACING)
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((4, length), x.dtype), empty_rows(1, length))

    def flops(vocab, most):
        model = make_model(vocab=vocab)
        params = jax.eval_shape(model.init, jax.random.key(0), batch)["params"]
        # One chunk: XLA counts the body of a loop once.
        loss = language_model_loss(model, 1, length, most).sums
        gradient = quick_jit(jax.grad(loss, has_aux=True))
        return gradient.lower(params, batch).compile().cost_analysis()["flops"]

    def head(most):
        return flops(2048, most) - flops(1024, most)

    assert head(None) > 2 * 3 * 4 * length * 16 * 1024 * 0.9
    assert head(most) < head(None) / 4


@pytest.mark.slow
def test_dropout_differs_between_samples_steps_and_rows(params):
    """The rows contain the same example, so they differ only in their dropout masks."""
    example = masked_rows(((18,),))[0][0]
    rows = pack_rows([[example, example]] * 2, LENGTH, SPACING)
    assert packed_length(example) * 2 + SPACING <= LENGTH
    batch = jax.tree.map(jnp.asarray, rows)
    model = make_model(dropout=0.3)

    def losses(step):
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.key(step), jnp.arange(2))
        x = model.apply(
            {"params": params}, batch.tokens, batch_layout(batch), row_keys=keys, method="encode"
        )[0]
        place = int(np.flatnonzero(example.labels != NO_LABEL)[0])
        second = packed_length(example) + SPACING + place
        return np.asarray(x[:, [place, second]]).reshape(4, -1)

    found = np.concatenate([losses(0), losses(1)])
    difference = np.abs(found[:, None] - found[None]).max(axis=-1)
    np.fill_diagonal(difference, 1)
    assert difference.min() > 1e-3
    assert float(stepped(params, batch, rate=0.3)[1].loss) == float(
        stepped(params, batch, rate=0.3)[1].loss
    )
    assert float(stepped(params, batch, rate=0.3, step=1)[1].loss) != float(
        stepped(params, batch, rate=0.3)[1].loss
    )


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["gated_ssm", "hawk", "transformer"])
def test_a_masked_tokens_loss_reaches_its_sample_in_both_directions_and_nothing_else(name):
    """Measured by the gradient of each position's embedding; every position has a different token."""
    examples = masked_rows(((9, 9),))
    rows = pack_rows(examples, 32, SPACING)
    rows = rows._replace(tokens=300 + np.arange(32, dtype=np.int32)[None])
    batch = jax.tree.map(jnp.asarray, rows)
    model = make_model(name, layers=2, tie_embeddings=False)
    params = quick_jit(model.init)(jax.random.key(0), batch)["params"]
    # Scale up the small initial table, so differences exceed rounding.
    params = params | {"embedding": params["embedding"] * 30, "head": params["head"] * 30}
    (place,) = np.flatnonzero(rows.loss_mask[0] & (rows.segment_ids[0] == 1))
    one = batch._replace(loss_mask=batch.loss_mask.at[:].set(False).at[0, place].set(True))

    def loss(embeddings):
        table = params["embedding"].at[batch.tokens[0]].set(embeddings)
        return jnp.sum(arm_sums(model, 1, 8, {**params, "embedding": table}, one, None, 8).loss)

    gradient = quick_jit(jax.grad(loss))(params["embedding"][batch.tokens[0]])
    size = np.asarray(jnp.linalg.norm(gradient, axis=-1))
    np.testing.assert_array_equal(size > 0, rows.segment_ids[0] == 1)
    assert 0 < place < 10
