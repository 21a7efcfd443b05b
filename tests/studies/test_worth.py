"""Tests the study of the mixture's value, with verbs that write fixed measurements."""

import dataclasses
import json
from collections import Counter

import jax
import pytest

from birdie_jax.config import parse_config
from birdie_jax.models import build_model
from birdie_jax.models.language_model import parameter_shapes
from birdie_jax.objectives import make_mixture
from studies.class_objective import class_of_arm
from studies.retrieval.plans import PROCEDURES, Run, runs_of
from studies.retrieval.pretraining import pretraining_config
from studies.retrieval.scales import SCALES
from studies.retrieval.study import Retrieval
from studies.retrieval.worth import _table_of_predictions, numbers_of_state, outcome_of
from tests.studies.written_verbs import WrittenVerbs

TEXT = "corpus.jsonl"
# Steps to the end of each fine-tuning's first stage, by procedure.
LEARNED = {
    "mixture_fixed_causal": (500, 900, None),
    "causal_lm_causal": (None, None, 3950),
    "scratch": (None, None, None),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the study with results of three arms and two seeds, and the commands of each run."""
    folder = tmp_path_factory.mktemp("worth")
    scale = dataclasses.replace(SCALES["worth"], order=((tuple(LEARNED), (10, 11)),))
    verbs = WrittenVerbs(scale, LEARNED)
    study = Retrieval(scale, folder / "results", folder / "workdirs", TEXT, run_verb=verbs)
    study.corpus.folder.mkdir(parents=True)
    study.corpus.record.write_text(json.dumps({"text": TEXT}))
    commands = {}
    for run in study.runs():
        assert len(study.commands_left(run)) == 1 + 1 + 3 + 1
        verbs.commands.clear()
        study.finish(run)
        commands[run] = list(verbs.commands)
        assert len(commands[run]) == len(set(commands[run]))
    return study, commands


def test_a_stage_starts_when_the_previous_stage_is_learned(finished):
    study, commands = finished
    stages = {"mixture_fixed_causal": 3 + 2, "causal_lm_causal": 3 + 1, "scratch": 3}
    for run, of_run in commands.items():
        verbs = Counter(command.verb for command in of_run)
        assert verbs == {"train": 2 + stages[run.procedure], "evaluate": 2 + 3}
    mixture = next(run for run in commands if run.procedure == "mixture_fixed_causal")
    workdir = f"--workdir={study.tuned(mixture, 'phonebook_1_1')}"
    (second,) = [one for one in commands[mixture] if one.verb == "train" and workdir in one.arguments]
    assert f"--config.init.from={study.tuned(mixture, 'phonebook_1_0')}" in second.arguments
    assert "--config.train.num_steps=1000" in second.arguments
    result = study.read_results()[mixture]
    repeats = result["fine_tuned"]["phonebook"]["repeats"]
    assert [one["steps"] for one in repeats] == [1500, 1900, 4000]
    assert [point["step"] for point in repeats[1]["curve"]] == list(range(50, 1901, 50))
    assert [point["stage"] for point in repeats[1]["curve"]] == [0] * 18 + [1] * 20


def test_fine_tunings_of_a_checkpoint_count_once(finished):
    study, _ = finished
    outcomes = {run.procedure: outcome_of(result, 4000) for run, result in study.read_results().items()}
    assert outcomes["mixture_fixed_causal"].times == (450, 850, 3950)
    assert outcomes["mixture_fixed_causal"].median == 850
    assert outcomes["scratch"].median == 3950


def test_the_page_has_runs_tests_and_figure(finished, tmp_path):
    study, _ = finished
    page = tmp_path / "page.md"
    page.write_text("<!-- begin retrieval.worth -->\n<!-- end retrieval.worth -->\n")
    study.write_page(page)
    text = page.read_text()
    assert (tmp_path / "page_worth_worth.png").exists()
    arm = "mixture of fixed shares, read causally"
    assert f"| {arm} | 2 | 1,024 | 850 | 2 | 2.00 | 10.0 | 5.00 | 75.0 | 25.0 | 25.0 | 25.0 |" in text
    assert f"| {arm} | 11 | 450, 850, 3950 | 850 | 25 | 25 | 25 | 10 | 5.0 | 2.000 |" in text
    against = f"{arm} against causal LM, read causally"
    assert f"| {against} | 2 | 850 | 3950 | 2, 2 | 0.333 | 0.500 | 1.000 |" in text
    assert f"| {arm} less causal LM, read causally | 2 |" in text


def test_conditions_with_one_common_seed_are_not_compared(finished):
    study, _ = finished
    results = {run: result for run, result in study.read_results().items() if run.seed == 11}
    assert "".join(study.tables(results)).count("No two conditions have two seeds in common yet.") == 2


def test_every_seed_has_the_four_main_arms():
    runs = list(runs_of(SCALES["worth"]))
    for place in range(6):
        of_seed = runs[4 * place : 4 * place + 4]
        assert {run.seed for run in of_seed} == {10 + place}
        assert len({run.procedure for run in of_seed}) == 4
        assert not any(PROCEDURES[run.procedure].bidirectional for run in of_seed)
    assert [run.procedure for run in runs[24:]] == ["ul2_causal"] * 3 + ["mixture_fixed"] * 3
    assert 100 not in {run.seed for run in runs}, "100 is the pilot's seed"


def test_the_memory_page_includes_runs_of_worth_with_equal_seeds(finished, tmp_path):
    study, _ = finished
    scale = dataclasses.replace(
        SCALES["memory"],
        models=("mamba2",),
        order=((("mixture_fixed_causal",), (10, 11)),),
    )
    verbs = WrittenVerbs(scale, LEARNED)
    memory = Retrieval(scale, study.results, tmp_path, TEXT, run_verb=verbs)
    memory.corpus.folder.mkdir(parents=True)
    memory.corpus.record.write_text(json.dumps({"text": TEXT}))
    runs = list(memory.runs())
    memory.finish(runs[0])
    assert "against gated_ssm_plus" not in "".join(memory.tables(memory.read_results())), "needs two seeds"
    memory.finish(runs[1])
    assert {(one.model, one.procedure, one.seed) for one in memory.read_results()} == {
        (model, "mixture_fixed_causal", seed) for model in ("gated_ssm_plus", "mamba2") for seed in (10, 11)
    }
    table = "".join(memory.tables(memory.read_results()))
    arm = "mixture of fixed shares, read causally"
    assert f"| mamba2: {arm} | 2 | 65,536 | 850 | 2 |" in table
    assert f"| mamba2: {arm} against gated_ssm_plus: {arm} | 2 | 850 | 850 |" in table
    assert not set(runs) & set(study.read_results())


def test_memories_have_the_planned_parameters_and_states():
    parameters, states = {}, {}
    for run in runs_of(SCALES["memory"]):
        config = parse_config(pretraining_config(run)).model
        shapes = parameter_shapes(build_model(config, 512))
        parameters[run.model] = sum(leaf.size for leaf in jax.tree.leaves(shapes))
        states[run.model] = numbers_of_state(run)
    assert set(parameters) == set(SCALES["memory"].models)
    of_default = 921_728
    assert all(count == pytest.approx(of_default, rel=0.02) for count in parameters.values())
    assert {states[name] for name in states if name.endswith("equal_state")} == {1024}
    assert states["gated_deltanet"] == 32_768 and states["mamba2"] == 65_536


def test_the_verdict_compares_the_objective_of_the_bandit(tmp_path):
    scale = SCALES["verdict"]
    procedures = ("best_fixed", "uniform")
    scale = dataclasses.replace(scale, order=((procedures, (30, 31)),))
    # Every class has a loss of 2, whatever the number of its arms, but for causal LM with 11.
    losses = {arm: 11.0 if name == "causal_lm" else 2.0 for arm, name in class_of_arm().items()}
    verbs = WrittenVerbs(scale, dict.fromkeys(procedures, (500, 500, 500)), losses=losses)
    study = Retrieval(scale, tmp_path / "results", tmp_path / "workdirs", TEXT, run_verb=verbs)
    study.corpus.folder.mkdir(parents=True)
    study.corpus.record.write_text(json.dumps({"text": TEXT}))
    for run in study.runs():
        study.finish(run)
    text = "".join(study.tables(study.read_results()))
    assert (
        "| best fixed mixture | 30 | 450, 450, 450 | 450 | 25 | 25 | 25 | 10 | 5.0 | 2.000 | 3.000 |"
        in text
    )
    assert "| best fixed mixture | 11.000 | 2.000 | 2.000 |" in text
    assert "| seeds | J, nats (less is better) |" in text
    assert "| best fixed mixture less equal shares of target tokens, as costly | 2 | 0 (0 .. 0) |" in text


def test_shares_that_nobody_searched_cost_what_steering_costs():
    """A position forward and backward costs three of validation."""

    def cost(procedure):
        config = pretraining_config(Run("verdict", "gated_ssm_plus", procedure, 30))
        steps, rows, length = config.train.num_steps, config.batching.rows, config.batching.length
        measured = len({*range(0, steps + 1, config.bandit.every_steps), steps})
        arms = len(make_mixture(config.objectives.mixture, length).arms)
        validated = arms * config.eval.batches_per_arm * config.eval.rows * length
        return 3 * steps * rows * length + measured * validated

    assert cost("uniform") == cost("untuned") == pytest.approx(cost("steered"), rel=5e-3)
    assert cost("steered") == cost("published") > 1.2 * cost("best_fixed")


def test_a_mixture_is_compared_with_the_reward_of_the_next_decision():
    decisions = [
        {"bandit/predicted_reward": 3.0},
        {"bandit/predicted_reward": 2.0, "bandit/earned_reward": -3.0},
        {"bandit/predicted_reward": 1.0, "bandit/earned_reward": -2.0},
        {"bandit/earned_reward": -1.0},
    ]
    published = Run("verdict", "gated_ssm_plus", "published", 30)
    results = {published: {"pretraining": {"mixture": decisions}}}
    assert _table_of_predictions(results).splitlines()[2:] == [
        "| published policy | 30 | -1.00 | +1.50 | -1.50 |"
    ]
    assert _table_of_predictions({published: {"pretraining": {"mixture": decisions[-1:]}}}) == ""
