"""Shares of a mixture: their units, the reported arms, and restarts."""

import jax
import numpy as np
import pytest

from birdie_jax.batching.arm_lengths import ArmLengths
from birdie_jax.config import parse_config
from birdie_jax.engine.state import TrainState
from birdie_jax.errors import ConfigError
from birdie_jax.objectives import mixture_from_arms
from birdie_jax.pretraining import mixture_shares
from birdie_jax.pretraining.mixture_batches import MixtureBatches
from birdie_jax.pretraining.mixture_shares import MixtureShares, measure_shares, small_loss_shares
from birdie_jax.resolve import configured_mixture, first_mixture, resolve_run
from birdie_jax.text import TokenShards, prepare
from tests.micro_config import get_config
from tests.whole_runs import write_corpus


def lengths(*counts):
    return ArmLengths(*np.array(counts, np.int64).T)


# Per arm: examples, positions, target tokens.
TWO = lengths((10, 1000, 1000), (10, 3000, 100))


def test_shares_are_computed_in_both_units():
    mixture = np.array([0.5, 0.5], np.float32)
    by_examples = MixtureShares("examples", mixture, TWO)
    assert by_examples.sampling(mixture) is mixture
    expected = by_examples.expected()
    assert expected.examples.tolist() == [0.5, 0.5]
    assert expected.positions.tolist() == [0.25, 0.75]
    np.testing.assert_allclose(expected.target_tokens, [10 / 11, 1 / 11], rtol=1e-12)
    by_tokens = MixtureShares("target_tokens", mixture, TWO)
    np.testing.assert_allclose(by_tokens.sampling(mixture), [1 / 11, 10 / 11], rtol=1e-12)
    expected = by_tokens.expected()
    np.testing.assert_allclose(expected.target_tokens, [0.5, 0.5], rtol=1e-12)
    np.testing.assert_allclose(expected.positions, [1 / 31, 30 / 31], rtol=1e-12)


def test_json_gives_other_processes_the_same_shares():
    shares = MixtureShares("target_tokens", np.array([0.1, 0.9]), TWO)
    again = MixtureShares.from_json(shares.to_json())
    assert again.shares_of == "target_tokens"
    assert again.first.tolist() == [0.1, 0.9]
    for one, other in zip(again.lengths, TWO, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


def mixture_of(**weights):
    return mixture_from_arms(
        {
            name: {"objective": "copying", "group": name.split("_")[0], "weight": weight}
            for name, weight in weights.items()
        }
    )


def test_arms_with_little_of_the_loss_are_named():
    mixture = mixture_of(text=0.5, find=0.5)
    assert small_loss_shares(mixture, MixtureShares("examples", mixture.weights, TWO)) == (
        "arms with little of the loss: find: 50.0% of the examples, 9.1% of the loss; the mixture has "
        "shares of examples, and config.objectives.shares_of = 'target_tokens' makes them shares of the "
        "loss"
    )
    assert small_loss_shares(mixture, MixtureShares("target_tokens", mixture.weights, TWO)) == ""
    # An arm with at least a third of its share of the examples is not reported.
    half = lengths((10, 1000, 1000), (10, 1000, 500))
    assert small_loss_shares(mixture, MixtureShares("examples", mixture.weights, half)) == ""


def test_a_class_is_named_instead_of_its_arms():
    mixture = mixture_of(text=4, find_a=1, find_b=1, mixed_a=1, mixed_b=1)
    counts = lengths((1, 900, 900), (1, 900, 9), (1, 900, 18), (1, 900, 900), (1, 900, 9))
    line = small_loss_shares(mixture, MixtureShares("examples", mixture.weights, counts))
    assert line.startswith(
        "arms with little of the loss: the 2 arms of find: 25.0% of the examples, 0.6% of the loss; "
        "mixed_b: 12.5% of the examples, 0.2% of the loss; the mixture"
    )


def test_arms_beyond_the_limit_are_counted():
    names = {f"arm{number}": 1.0 for number in range(7)}
    mixture = mixture_of(text=1.0, **names)
    counts = lengths((1, 900, 900), *[(1, 900, 9)] * 7)
    line = small_loss_shares(mixture, MixtureShares("examples", mixture.weights, counts))
    assert "arm3: 12.5% of the examples, 0.9% of the loss; and 3 more, see the report; the mixture" in line


def test_the_first_mixture_depends_on_the_policy():
    config = get_config()
    config.objectives.arms = {
        "a": {"objective": "copying", "weight": 3.0},
        "b": {"objective": "causal_lm", "weight": 1.0},
    }

    def first(**bandit):
        config.bandit.update(bandit)
        parsed = parse_config(config)
        return first_mixture(parsed, configured_mixture(parsed)).tolist()

    assert first(policy="fixed") == first(policy="birdie") == [0.75, 0.25]
    assert first(policy="uniform") == [0.5, 0.5]
    assert first(policy="staged", stages="0: causal_lm=1; 0.5: copying=1") == [0.0, 1.0]


def test_an_unknown_unit_is_refused():
    config = get_config()
    config.objectives.shares_of = "tokens"
    with pytest.raises(
        ConfigError,
        match=r"^config\.objectives\.shares_of: found 'tokens'; allowed: target_tokens, examples$",
    ):
        parse_config(config)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    corpus = write_corpus(folder)
    return TokenShards(
        prepare(
            str(corpus),
            folder / "prepared",
            vocab_size=300,
            record_tokens=512,
            validation_fraction=0.3,
            workers=0,
            progress=False,
        ),
        "train",
    )


def test_batches_by_target_tokens_are_the_same_after_a_restart(text, monkeypatch):
    """Compares a run of three decisions with the same run restarted during the second one."""
    # Count fewer examples than a run does: this test does not depend on the accuracy of the counts.
    monkeypatch.setattr(mixture_shares, "_EXAMPLES", 200)
    monkeypatch.setattr(mixture_shares, "_EXACT_EXAMPLES", 400)
    config = get_config("fixed")
    config.objectives.shares_of = "target_tokens"
    config.objectives.arms = {
        "text": {"objective": "causal_lm", "weight": 0.5},
        "copy": {"objective": "copying", "min_length": 8, "max_length": 16, "weight": 0.5},
    }
    config.train.num_steps = 15
    config = parse_config(config)
    mixture = configured_mixture(config)
    mixtures = [np.array(each, np.float32) for each in ((0.5, 0.5), (0.9, 0.1), (0.1, 0.9))]

    def start(position, step, published):
        # Count again, as a restart does.
        batches = MixtureBatches(run, measure_shares(config, mixture, text), text)
        for each in published:
            batches.publish(each)
        batches.restore(position or batches.first_position(), TrainState(np.int32(step), None, None, {}))
        return batches

    run = resolve_run(config, text.vocab_size)
    with jax.set_mesh(run.mesh):
        whole = start(None, 0, mixtures)
        made = [next(whole) for _ in range(15)]
        position = whole.gather(made[6][1])
        drawn_under = [whole.history.wait_for(decision) for decision in range(3)]
        whole.close()
        # As a run that resumes after 7 steps: it also publishes the current mixture for earlier decisions.
        resumed = start(position, 7, [mixtures[1], mixtures[1]])
        for number in range(7, 15):
            if number == 9:
                resumed.publish(mixtures[2])
            batch, states = next(resumed)
            for ours, theirs in zip(batch, made[number][0], strict=True):
                np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
            np.testing.assert_array_equal(states, made[number][1])
        resumed.close()
    # Examples of copying are short, so most drawn examples are copying under every mixture.
    tokens = measure_shares(config, mixture, text).lengths.mean_target_tokens
    written, copied = mixture.names.index("text"), mixture.names.index("copy")
    assert tokens[written] > 5 * tokens[copied]
    for requested, sampling in zip(mixtures, drawn_under, strict=True):
        products = sampling * tokens
        np.testing.assert_allclose(products / products.sum(), requested, rtol=1e-6)
        assert sampling[copied] > requested[copied]
    # With shares of examples, copying would have at most a sixth of the target tokens in the batches.
    loss_arms = np.concatenate([np.asarray(batch.arm_ids)[batch.loss_mask] for batch, _ in made[:5]])
    assert 0.25 < np.mean(loss_arms == copied) < 0.75
