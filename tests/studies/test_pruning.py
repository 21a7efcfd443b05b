"""Runs the smallest scale of the pruning study, with an interruption, and tests the study's rules."""

import bisect
import contextlib
import heapq
import inspect
import itertools
import json
import keyword
import operator
import queue
import sched
import shlex
import string
import textwrap

import numpy as np
import pytest

from birdie_jax.config import parse_config
from birdie_jax.errors import ConfigError
from birdie_jax.text.tokenizer_training import train_tokenizer
from studies.pruning import judgement
from studies.pruning.conditions import TextLosses, needles_of
from studies.pruning.config import TEXT, TEXT_PRUNED, get_config, tunings
from studies.pruning.identifiers import identifier_windows
from studies.pruning.plans import (
    INFLUENCE,
    JUDGED_SHARES,
    MAIN,
    MODELS,
    RANDOM,
    RECENCY,
    SCALES,
    UNIFORM,
    Identifiers,
    Run,
    runs_of,
)
from studies.pruning.stakes import judge_stakes
from studies.pruning.study import Pruning
from studies.verbs import StudyError
from tests.forked_verbs import ForkedVerbs
from tests.studies.verbs_that_stop import VerbsThatStop
from tests.whole_runs import write_corpus

RUN, SMALLER_RUN = Run("smoke", "gated_ssm", 0), Run("smoke", "gated_ssm_smaller", 0)
SMALL = SCALES["small"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the study after two runs, one of them interrupted, and its planned and executed commands."""
    folder = tmp_path_factory.mktemp("study")
    text = write_corpus(folder, documents=12)
    verbs = ForkedVerbs("tests.without_reports")
    run_verb = VerbsThatStop(verbs, {3})
    study = Pruning(SCALES["smoke"], folder / "results", folder / "workdirs", str(text), run_verb=run_verb)
    planned = list(study.commands_left(RUN))
    with pytest.raises(StudyError, match="stopped"):
        study.finish(RUN)
    assert list(study.commands_left(RUN)) == planned[3:], "the first three commands are done"
    cells = sorted(study.folder(RUN).glob("cells/*/cells/*.json"))
    before = [(cell, cell.stat().st_mtime_ns) for cell in cells]
    study.finish(RUN)
    assert [(cell, cell.stat().st_mtime_ns) for cell in cells] == before
    assert len(cells) == 1 + 3 * 2 + 2
    study.finish(SMALLER_RUN)
    return study, planned, run_verb.commands


def test_a_stopped_run_repeats_nothing(finished):
    study, planned, commands = finished
    assert commands[: len(planned)] == planned
    assert len(commands) == len(planned) + 1, "the smaller model has only a pre-training"
    assert list(study.commands_left(RUN)) == []
    before = study.result_file(RUN).read_bytes()
    study.finish(RUN)
    assert study.result_file(RUN).read_bytes() == before


def test_result_and_page_have_every_measurement(finished, tmp_path):
    study, *_ = finished
    scale = study.scale
    results = study.read_results()
    assert set(results) == {RUN, SMALLER_RUN}
    result = results[RUN]
    conditions = {(one["variant"], one["policy"], one["keep"]) for one in result["losses"]["cells"]}
    policies = ((MAIN, INFLUENCE), (MAIN, UNIFORM), (MAIN, RECENCY), ("random_0", RANDOM))
    assert conditions == {("dense", "dense", 1.0)} | {
        (*policy, keep) for policy, keep in itertools.product(policies, scale.shares)
    }
    assert {len(one["losses"]) for one in result["losses"]["cells"]} == {scale.windows}
    assert set(result["fine_tuned"]) == set(tunings(scale))
    hashes = {result["fine_tuned"][what]["losses"]["windows_sha256"] for what in (TEXT, TEXT_PRUNED)}
    assert hashes == {result["losses"]["windows_sha256"]}
    curves = result["fine_tuned"][TEXT_PRUNED]["training"]["curves"]
    assert curves["pruned_loss"] and "pruned_loss" not in result["fine_tuned"][TEXT]["training"]["curves"]
    needles = needles_of(result["fine_tuned"]["needles_last"])
    assert [(one.policy, one.keep) for one in needles] == [("dense", 1.0), (INFLUENCE, 0.2), (RECENCY, 0.2)]
    assert len(needles[0].accuracy) == scale.needles.questions
    smaller = results[SMALLER_RUN]
    assert [one["policy"] for one in smaller["losses"]["cells"]] == ["dense"]
    assert smaller["losses"]["windows_sha256"] == result["losses"]["windows_sha256"]
    page = tmp_path / "page.md"
    page.write_text("<!-- begin pruning.smoke -->\n<!-- end pruning.smoke -->\n")
    study.write_page(page)
    names = ("flops", "needles")
    assert {path.name for path in tmp_path.glob("*.png")} == {f"page_smoke_{name}.png" for name in names}
    planned, text = list(study.runs()), page.read_text()
    assert "**gated_ssm, seed 0**, text: influence < uniform < random" in text
    assert "| gated_ssm.0 | smaller, all tokens |" in text
    assert [run.model for run in planned[::2]] == list(MODELS)
    assert f"Not run: {len(planned) - len(results)} of {len(planned)}" in text


def test_texts_to_continue_are_complete_and_distinct(finished):
    study, *_ = finished
    lines = study.corpus.continuations.read_text().splitlines()
    plan = study.scale.text_tuning
    assert len(lines) == len(set(lines)) == plan.steps * plan.rows


def losses_of(cells):
    return TextLosses(plain_losses(cells))


def plain_losses(cells, windows=40):
    """Return losses in the form of results.

    Each condition has the mean and the spread of its difference from the dense losses.
    """
    noise = np.random.default_rng(0).normal(size=windows)
    dense = {
        "variant": "dense",
        "policy": "dense",
        "keep": 1.0,
        "context": SMALL.main_context,
        "losses": (3 + noise).tolist(),
        "paper_flops": 1.0,
        "executed_flops": 1.0,
    }
    found = [dense]
    for (variant, policy, keep), (mean, spread) in cells.items():
        own = np.random.default_rng(len(found)).normal(size=windows)
        losses = 3 + noise + mean + spread * (own - own.mean())
        found.append(
            dense | {"variant": variant, "policy": policy, "keep": keep, "losses": losses.tolist()}
        )
    return {"documents": np.arange(windows) // 2, "cells": found}


def claim_cells(uniform=0.2, random=0.4, spread=0.01, recency=0.1):
    found = {}
    for keep in JUDGED_SHARES:
        found[MAIN, INFLUENCE, keep] = (0.1, spread)
        found[MAIN, UNIFORM, keep] = (uniform, spread)
        found["random_0", RANDOM, keep] = (random - 0.05, spread)
        found["random_1", RANDOM, keep] = (random + 0.05, spread)
        found[MAIN, RECENCY, keep] = (recency, spread)
    return found


def test_the_claim_holds_if_the_order_is_clear():
    sentence = judgement.judge_claim(losses_of(claim_cells()), SMALL)
    assert sentence.startswith(
        "influence < uniform < random in loss at 5 of 5 shares; both differences off zero"
    )
    assert sentence.endswith("The claim holds.")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"uniform": 0.05}, "at 0 of 5 shares; not above zero: uniform at 0.3, uniform at 0.1."),
        ({"random": 0.15}, "at 0 of 5 shares; not above zero: random at 0.3, random at 0.1."),
        ({"spread": 2.0}, "at 5 of 5 shares; not above zero: uniform at 0.3, random at 0.3, uniform"),
    ],
)
def test_the_claim_fails_without_a_clear_order(changed, sentence):
    found = judgement.judge_claim(losses_of(claim_cells(**changed)), SMALL)
    assert sentence in found
    assert found.endswith("The claim does not hold.")


def test_the_claim_fails_with_two_shares_out_of_order():
    for shares, holds in (((0.9,), True), ((0.9, 0.7), False)):
        cells = claim_cells()
        for keep in shares:
            cells[MAIN, UNIFORM, keep] = (0.0, 0.01)
        sentence = judgement.judge_claim(losses_of(cells), SMALL)
        assert sentence.endswith("The claim holds." if holds else "The claim does not hold."), sentence


def test_recency_is_compared_at_every_share():
    cells = claim_cells(recency=0.3)
    cells[MAIN, RECENCY, 0.9] = (0.0, 0.01)
    cells[MAIN, RECENCY, 0.7] = (0.1, 2.0)
    sentence = judgement.judge_recency(losses_of(cells), SMALL)
    assert sentence.endswith("influence at 0.5, 0.3, 0.1; recency at 0.9; neither at 0.7.")


def test_needles_of_a_model_that_did_not_learn_are_not_judged():
    def lines(dense):
        answers = {"dense": (1.0, dense), INFLUENCE: (0.1, 0.9), UNIFORM: (0.1, 0.5), RECENCY: (0.1, 0.2)}
        needles = [
            {"policy": policy, "keep": keep, "accuracy": [float(n < right * 50) for n in range(50)]}
            for policy, (keep, right) in answers.items()
        ]
        return list(judgement.judge_needles({"needles_first": {"needles": needles}}))

    assert lines(0.4) == [
        "items among noise, query first: 40 % right with all tokens: not learned, not judged."
    ]
    (sentence,) = lines(1.0)
    assert "100 % right with all tokens; at 0.1 influence 90 %, +40 [" in sentence
    assert "over uniform, +70 [" in sentence


def test_the_interval_decides_whether_the_second_loss_helps():
    keep = min(SMALL.tuned_variant.shares)

    def sentence(gain, spread):
        tuned = {
            what: {"losses": plain_losses({("tuned", INFLUENCE, keep): (1 - g, spread)})}
            for what, g in ((TEXT, 0.0), (TEXT_PRUNED, gain))
        }
        (line,) = judgement.judge_tuning(tuned, SMALL)
        return line

    assert sentence(0.5, 0.01).endswith("It helps for pruned prompts.")
    assert sentence(-0.5, 0.01).endswith("It harms for pruned prompts.")
    assert sentence(0.0, 0.01).endswith("It makes no clear difference for pruned prompts.")


def test_runs_have_their_variants(tmp_path):
    study = Pruning(SMALL, tmp_path, tmp_path, "")
    names = {run.name: [variant.name for variant in study.variants_of(run)] for run in runs_of(SMALL)}
    assert list(names) == [
        "mamba.0",
        "mamba_smaller.0",
        "gated_ssm.0",
        "gated_ssm_smaller.0",
        "hawk.0",
        "hawk_smaller.0",
        "mamba.1",
        "mamba.2",
    ]
    assert names["mamba_smaller.0"] == []
    assert names["mamba.1"] == [MAIN, *(f"random_{seed}" for seed in range(5))]
    assert set(names["mamba.1"]) < set(names["mamba.0"]) == set(names["hawk.0"])


@pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
@pytest.mark.parametrize("scale", SCALES)
def test_every_configuration_parses(scale):
    for model in MODELS:
        for suffix in ("", "_smaller"):
            config = get_config(f"{scale},{model}{suffix},0")
            assert parse_config(config).model.name == model
        for what in tunings(SCALES[scale]):
            assert parse_config(get_config(f"{scale},{model},0,{what}")).finetune.stages


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("small,mamba", "found 2 parts"),
        ("large,mamba,0", "found 'large'; allowed: smoke, smoke_stake, small, stake"),
        ("small,transformer,0", "found 'transformer'; allowed: mamba, "),
        ("small,mamba,0,squad", "found 'squad'; allowed: text, text_pruned, needles_none"),
    ],
)
def test_unknown_variants_are_refused(variant, message):
    with pytest.raises(ConfigError) as caught:
        get_config(variant)
    assert message in str(caught.value)


CODE = """
def measure(amplitude):
    {filler}
    return amplitude
"""


def tokens_of_code(amount, comment):
    """Return a tokenizer, and the tokens of a function whose argument is read again after a filler."""
    code = CODE.format(filler="\n    ".join(f"value = {number}" for number in range(amount)))
    tokenizer = train_tokenizer([code] * 4, vocab_size=308)
    return tokenizer, tokenizer.encode(comment + code)


@pytest.mark.parametrize("comment", ["", "# a form feed: \f", "# a line separator: \u2028"])
def test_windows_end_with_an_identifier_that_is_far_back(comment):
    tokenizer, tokens = tokens_of_code(20, comment)
    far = Identifiers(nearest=100, farthest=240, least_gain=0.2)
    windows = identifier_windows(iter([tokens]), tokenizer, far, context=240, continuation=1)
    (window,) = windows.tokens
    assert tokenizer.decode(window[-1:]) == "amplitude"
    assert "amplitude" in tokenizer.decode(window[:-100])
    assert "amplitude" not in tokenizer.decode(window[-100:-1])
    near = Identifiers(nearest=50, farthest=80, least_gain=0.2)
    with pytest.raises(ConfigError, match="found no identifier that a context of 240 tokens has 50 to 80"):
        identifier_windows(iter([tokens]), tokenizer, near, context=240, continuation=1)


def stake_result(gain, right, *, other=0.2, learned=True):
    """Return a seed's result: influence loses 0.1 nats, and the others `other`; `gain` is of the gate."""
    scale = SCALES["stake"]
    cells = [
        {"variant": "dense", "policy": "dense", "keep": 1.0, "context": 512, "losses": [3.0] * 4},
        {"variant": "dense", "policy": "dense", "keep": 1.0, "context": 64, "losses": [3.0 + gain] * 4},
    ]
    needles = [{"policy": "dense", "keep": 1.0, "accuracy": [0.9] * 4}]
    for policy in (INFLUENCE, UNIFORM, RECENCY, RANDOM):
        for keep in (0.3, 0.1):
            loss, accuracy = (3.1, 0.8) if policy == INFLUENCE else (3.0 + other, right)
            cells.append(
                {"variant": MAIN, "policy": policy, "keep": keep, "context": 512, "losses": [loss] * 4}
            )
            needles.append({"policy": policy, "keep": keep, "accuracy": [accuracy] * 4})
    cells = [cell | {"paper_flops": 1.0, "executed_flops": 1.0} for cell in cells]
    curve = {"task/needles_last/token_accuracy": [[100, scale.needles.learned if learned else 0.3]]}
    return {
        "losses": {"documents": [0, 0, 1, 1], "cells": cells},
        "fine_tuned": {"needles_last": {"training": {"curves": curve}, "needles": needles}},
    }


def stake_lines(results):
    runs = {Run("stake", "mamba", 10 + number): result for number, result in enumerate(results)}
    return judge_stakes(SCALES["stake"], runs)


def test_influence_keeps_what_is_far_if_it_is_ahead_of_all_others():
    identifiers, noise = stake_lines(
        [stake_result(0.3, 0.4, other=0.2), stake_result(0.3, 0.5, other=0.21), stake_result(0.25, 0.45)]
    )
    assert "512 tokens instead of 64 lower the loss by 0.283 nats" in identifiers
    assert "keeps what is far: more than recency and uniform and random (+0.1033 [" in identifiers
    assert "3 of 3 learned. Influence keeps what is far" in noise and "+35 [" in noise


def test_what_is_not_at_stake_or_not_learned_is_not_judged():
    results = [stake_result(0.1, 0.4), stake_result(0.1, 0.4), stake_result(0.1, 0.4, learned=False)]
    identifiers, noise = stake_lines(results)
    assert identifiers.endswith("by 0.100 nats, less than 0.2: not judged.")
    assert noise.endswith("2 of 3 learned, fewer than 3: not judged.")


def test_the_claim_names_the_policies_that_are_ahead_or_unclear():
    identifiers, noise = stake_lines([stake_result(0.3, right, other=0.05) for right in (0.9, 0.9, 0.91)])
    assert "does not hold: less than recency and uniform and random (" in identifiers
    assert "does not hold: less than recency and uniform and random (" in noise
    _, noise = stake_lines([stake_result(0.3, right) for right in (0.5, 0.9, 0.95)])
    assert "does not hold: no clear difference from recency and uniform and random (" in noise


@pytest.mark.slow
def test_a_run_of_identifiers_has_every_measurement(tmp_path):
    """The text is short modules of the standard library."""
    text = tmp_path / "code.jsonl"
    modules = (bisect, contextlib, heapq, keyword, operator, queue, sched, shlex, string, textwrap)
    text.write_text("".join(json.dumps({"text": inspect.getsource(one)}) + "\n" for one in modules))
    scale = SCALES["smoke_stake"]
    verbs = ForkedVerbs("tests.without_reports")
    run_verb = VerbsThatStop(verbs, set())
    study = Pruning(scale, tmp_path / "results", tmp_path / "workdirs", str(text), run_verb=run_verb)
    study.finish(Run("smoke_stake", "gated_ssm", 0))
    ((run, result),) = study.read_results().items()
    assert set(result["fine_tuned"]) == {"needles_last"}
    contexts = [one["context"] for one in result["losses"]["cells"] if one["policy"] == "dense"]
    assert contexts == list(scale.contexts)
    assert {len(one["losses"]) for one in result["losses"]["cells"]} == {scale.windows}
    results = {run._replace(seed=seed): result for seed in scale.seeds}
    tables = "\n".join(study.tables(results))
    assert "**gated_ssm**, identifiers: 16 tokens instead of 8 lower the loss by" in tables
    assert "query last: 0 of 2 learned, fewer than 3: not judged." in tables
    ((name, figure),) = study.figures(results)
    (axes,) = figure.axes
    dense = np.mean(result["fine_tuned"]["needles_last"]["needles"][0]["accuracy"])
    # With all tokens, every policy has the accuracy of the dense model.
    assert name == "noise"
    assert [line.get_ydata()[0] for line in axes.lines] == pytest.approx([dense] * len(axes.lines))
    # A line of each seed, and their mean.
    assert len(axes.lines) == (len(scale.seeds) + 1) * len(scale.needles.policies)
