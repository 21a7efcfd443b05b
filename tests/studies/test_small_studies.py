"""Runs the single-file studies at their smallest scale, from runs to pages."""

import dataclasses

import numpy as np
import pytest

from birdie_jax.config import parse_config
from birdie_jax.config_flag import load_config
from birdie_jax.resolve import configured_mixture
from studies.bandit_problems import instance_of
from studies.bandit_regret import BanditRegret, bandit_config, regrets, run_policy
from studies.bandit_steering import BanditSteering
from studies.small_mixtures import SmallMixtures
from studies.verbs import StudyError
from tests.forked_verbs import ForkedVerbs
from tests.studies.verbs_that_stop import VerbsThatStop
from tests.whole_runs import write_corpus


def write_page(study, folder):
    page = folder / "page.md"
    page.write_text(f"<!-- begin {study.name}.smoke -->\n<!-- end {study.name}.smoke -->\n")
    study.write_page(page)
    return page.read_text()


def test_no_policy_is_better_than_the_best_schedule(tmp_path, capsys):
    study = BanditRegret(BanditRegret.scales["smoke"], tmp_path / "results", tmp_path / "workdirs", "")
    unfinished = [run for run in study.runs() if run.contender == "staged"]
    study.print_list(unfinished)
    assert "unknown: no run of this scale has finished" in capsys.readouterr().out
    for run in study.runs():
        if run.contender in ("oracle", "fixed", "uniform"):
            study.finish(run)
    assert not any(study.folder(run).exists() for run in study.runs())
    study.print_list(unfinished)
    assert "left  about " in capsys.readouterr().out, "the other runs show how long it takes"
    table = regrets(study.read_results())
    assert set(table) == {"best constant mixture", "fixed", "uniform"}
    for by_problem in table.values():
        assert all(regret.min() > -1e-4 for regret in by_problem.values())
    for problem in ("saturation", "one arm", "transfer"):
        # On these problems, changing mixtures gain nothing.
        assert table["best constant mixture"][problem].max() < 1e-3 < table["uniform"][problem].min()
    text = write_page(study, tmp_path)
    assert "| uniform |" in text and "Not run: 20 of 23" in text
    assert (tmp_path / "page_smoke_regret.png").exists()


def test_the_page_has_a_line_for_each_training(tmp_path):
    text = write_corpus(tmp_path, documents=96)
    verbs = ForkedVerbs("tests.without_reports")
    study = BanditSteering(
        BanditSteering.scales["smoke"],
        tmp_path / "results",
        tmp_path / "workdirs",
        str(text),
        run_verb=VerbsThatStop(verbs, {0}),
    )
    run = next(run for run in study.runs() if run.contender == "fixed")
    (command,) = study.commands_left(run)
    with pytest.raises(StudyError, match="stopped"):
        study.finish(run)
    study.finish(run)
    assert list(study.commands_left(run)) == [] and study.run_verb.commands == [command]
    assert not study.folder(run).exists(), "another run would add to its clock"
    (result,) = study.read_results().values()
    assert result["settings"]["data.source"] == str(text)
    assert len(result["steps"]) == len(result["validation_loss"]) > 4
    assert len(result["probability"]) == len(result["reward"]) == len(result["steps"]) - 1
    page = write_page(study, tmp_path)
    assert "\n| fixed" in page and "page_smoke_steering.png" in page
    planned = list(study.runs())
    assert f"Not run: {len(planned) - 1} of {len(planned)}" in page


@pytest.mark.parametrize("kind", [BanditSteering, SmallMixtures])
def test_every_contender_configuration_parses(kind, tmp_path):
    """All scales have the same number of decisions, except that smoke of `BanditSteering` has four."""
    decisions = set()
    for scale in kind.scales.values():
        study = kind(scale, tmp_path, tmp_path, "stdlib")
        for run in study.runs():
            config = load_config("configs/tiny.py")
            config.update_from_flattened_dict(study.settings(run))
            parsed = parse_config(config)
            assert configured_mixture(parsed).arms
            decisions.add(parsed.train.num_steps / parsed.bandit.every_steps)
    assert decisions == ({4, 20} if kind is BanditSteering else {20})


@pytest.mark.parametrize("policy", ["birdie", "progress"])
def test_a_policy_on_a_problem_records_losses_and_rewards(policy):
    decisions = 4
    instance = instance_of("transfer", 1, decisions)
    config = bandit_config({"policy": policy})
    record = run_policy(dataclasses.replace(config, critic_updates=2, candidates=16), instance, 0)
    measured = np.array(record["losses"])
    assert measured.shape == (decisions + 1, len(instance.floor))
    np.testing.assert_allclose(measured[0], instance.floor + instance.height + instance.noise[0], atol=1e-4)
    # The end is measured with noise, whose deviation is 0.01.
    assert record["final"] == pytest.approx(measured[-1].mean(), abs=0.02)
    before, after = measured[:-1], measured[1:]
    inner = np.e * np.sqrt(before * after) * ((after - before) / before) ** 3
    rewards = np.clip(-100 * np.e * np.tanh(inner), -1, 1).sum(axis=1)
    np.testing.assert_allclose(record["earned_reward"], rewards, atol=0.02)
    assert len(record.get("predicted_reward", [])) == (decisions if policy == "birdie" else 0)
