"""Tests the parts of the retrieval study that need no model: baselines, choice, comparison, plans."""

import itertools

import numpy as np
import pytest

from birdie_jax.config import parse_config
from birdie_jax.errors import ConfigError
from birdie_jax.finetuning.stages import read_stages
from birdie_jax.resolve import configured_mixture
from birdie_jax.tasks.evaluation import tasks_of_config
from birdie_jax.tasks.phonebook_text import Book, BookForm, Entry
from birdie_jax.tasks.task_hook import read_stop_rule
from studies.comparison import Scored, gather, mean_with_interval, paired_difference
from studies.retrieval.config import get_config
from studies.retrieval.fine_tuning import choose, steps_to, tunings_on_grids
from studies.retrieval.measuring import commonest_digits
from studies.retrieval.plans import PAPER_PROCEDURES, PROCEDURES, runs_of
from studies.retrieval.scales import SCALES
from studies.verbs import StudyError


def test_commonest_digits_are_the_best_answer_that_ignores_the_name():
    numbers = ("1234", "1294", "1537")
    entries = tuple(Entry(name, number) for name, number in zip("ABC", numbers, strict=True))
    book = Book(entries, (entries[1], entries[2]))
    prompt, answer = book.prompt(BookForm(1, "####", "both", "names")), book.answer()
    # The commonest digits are 1, 2, 3 and 4. The answers 1294 and 1537 share three and two of them.
    assert commonest_digits(prompt, answer) == pytest.approx((3 + 2) / 8)
    assert commonest_digits(prompt, "1234") == 1
    tie = Book(entries[::2], entries[:1])
    prompt = tie.prompt(BookForm(1, "####", "both"))
    assert commonest_digits(prompt, tie.answer()) == pytest.approx((1 + 0.5 + 1 + 0.5) / 4)


def test_the_choice_prefers_the_best_score_then_the_fewest_steps():
    curves = {
        1e-3: [{"step": 5, "a/digit_accuracy": 0.6}, {"step": 10, "a/digit_accuracy": 0.7}],
        3e-3: [{"step": 5, "a/digit_accuracy": 0.7}, {"step": 10, "a/digit_accuracy": 0.65}],
    }
    chosen = choose(curves, "phonebook", {"a": 0.5})
    assert (chosen.learning_rate, chosen.step) == (3e-3, 5)
    assert chosen.score == pytest.approx(0.2)
    assert steps_to(curves[1e-3], "a/digit_accuracy", 0.65) == 10
    assert steps_to(curves[1e-3], "a/digit_accuracy", 0.9) is None


def test_pairing_narrows_the_interval():
    rng = np.random.default_rng(0)
    hardness = rng.normal(0, 1, (3, 400))
    weights = np.ones(400)
    first = Scored(hardness, weights)
    second = Scored(hardness + 0.1 + rng.normal(0, 0.01, hardness.shape), weights)
    difference = paired_difference(first, second)
    assert difference.low < difference.mean < difference.high
    assert difference.mean == pytest.approx(0.1, abs=0.005)
    assert difference.high - difference.low < 0.02
    alone = mean_with_interval(first)
    assert alone.high - alone.low > 0.05


def test_intervals_cover_the_variation_between_seeds():
    offsets = np.array([[-0.3], [0.0], [0.3]])
    scores = np.zeros((3, 200)) + offsets
    interval = mean_with_interval(Scored(scores, np.ones(200)))
    assert interval.mean == pytest.approx(0)
    assert interval.low < -0.2
    assert interval.high > 0.2


def test_means_use_the_weights():
    scored = Scored(np.array([[1.0, 0.0]]), np.array([3.0, 1.0]))
    assert mean_with_interval(scored).mean == pytest.approx(0.75)


def test_runs_with_different_questions_are_not_compared():
    one = {"task": "t", "questions_sha256": "a", "scores": {"m": [0.0]}, "weights": [1.0]}
    with pytest.raises(StudyError, match="t: found 2 different sets of questions"):
        gather([one, one | {"questions_sha256": "b"}], "m")


def test_decisive_arms_come_first_with_every_seed():
    runs = list(runs_of(SCALES["small"]))
    assert len(runs) == len(set(runs)) == 3 * (len(PAPER_PROCEDURES) + 2 * 2)
    assert {run.procedure for run in runs[:12]} == {
        *("causal_lm_causal", "causal_lm", "mixture_causal", "mixture")
    }
    assert [run.seed for run in runs[:12]] == [0] * 4 + [1] * 4 + [2] * 4
    assert {run.procedure for run in runs[12:15]} == {"birdie"}


@pytest.mark.parametrize(
    "scale", [pytest.param(scale, marks=[pytest.mark.slow] * (scale != "small")) for scale in SCALES]
)
def test_every_configuration_parses(scale):
    """Configurations differ only in the fields that the procedure sets."""
    plain, plan = {}, SCALES[scale]
    first_seed = next(runs_of(plan)).seed
    for run in runs_of(plan):
        if run.seed != first_seed:
            continue
        variant = f"{scale},{run.model},{run.procedure},{run.seed}"
        config = get_config(variant)
        parsed = parse_config(config)
        assert configured_mixture(parsed).arms
        assert parsed.model.bidirectional == PROCEDURES[run.procedure].bidirectional
        config.model.bidirectional = True
        config.bandit.update({"policy": "", "reward": "", "every_steps": 1, "stages": ""})
        config.objectives.mixture = ""
        with config.ignore_type():
            for name in itertools.chain(*(one.settings for one in PROCEDURES.values())):
                section, field = name.split(".")
                config[section][field] = None
        if (budget := PROCEDURES[run.procedure].budget) != "whole":
            assert (config.train.num_steps > 6000) == (budget == "cost of steering")
            config.train.num_steps = 6000
            config.optimizer.update({"learning_rate": 3e-3, "final_learning_rate": 1e-5})
        assert plain.setdefault(run.model, config.to_dict()) == config.to_dict()
        for stage in range(len(plan.phonebook.stages) if plan.has_curriculum else 0):
            parsed = parse_config(get_config(f"{variant},phonebook,0.001,1,{stage}"))
            (only,) = read_stages(parsed)
            assert only.steps == plan.phonebook_tuning.steps
            assert read_stop_rule(parsed.eval, tasks_of_config(parsed.eval.tasks, "")) is not None
        for tuning in tunings_on_grids(plan):
            stages = read_stages(parse_config(get_config(f"{variant},{tuning},0.001")))
            assert sum(stage.steps for stage in stages) == max(
                getattr(SCALES[scale], f"{tuning}_tuning").measured_steps
            )


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("small", "found 1 parts; allowed: SCALE,MODEL,PROCEDURE,SEED"),
        ("huge,hawk,birdie,0", "unknown scale; allowed: smoke, small"),
        ("small,hawk,other,0", "procedure 'other' is unknown; allowed: causal_lm_causal"),
        ("small,other,birdie,0", "model 'other' is unknown; allowed: "),
        ("small,hawk,birdie,0,chess,0.1", "fine-tuning 'chess' is unknown; allowed: phonebook"),
    ],
)
def test_unusable_variants_are_refused(variant, message):
    with pytest.raises(ConfigError, match=message):
        get_config(variant)
