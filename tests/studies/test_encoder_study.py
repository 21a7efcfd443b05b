"""Runs the smallest scale of the encoder study, from text to page, with interruptions."""

import json
import random
import string
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from studies.encoders.pilot import read_pilot
from studies.encoders.plans import DECIDING, OTHERS, SCALES, runs_of
from studies.encoders.study import Encoders
from studies.encoders.tasks import PROSE, TRANSFER_TASKS, Document
from studies.encoders.text import SPLITS, TEST, agreement_sentences
from studies.encoders.verses import neighbouring_pairs, words_of
from studies.verbs import StudyError
from tests.forked_verbs import ForkedVerbs
from tests.studies.verbs_that_stop import VerbsThatStop

SOURCES = TRANSFER_TASKS["source"].classes
BIBLE, COMMENTARY = "world-english-bible", "treasury-of-david"


def make_documents(count=20):
    """Return documents of every source, words and verses; the commentary misquotes one word of a verse."""
    draw = random.Random(0)
    words = ["".join(draw.choices(string.ascii_lowercase, k=draw.randint(3, 6))) for _ in range(400)]
    documents, verses = [], []
    for number in range(count):
        for source in SOURCES:
            sentences = [
                f"The {first} was near {name} and the {second} of these {third}s is here."
                for first, name, second, third in (draw.sample(words, 4) for _ in range(12))
            ]
            if source == BIBLE:
                lines = [" ".join(draw.sample(words, 8)) for _ in range(20)]
                verses.append(lines)
                sentences += ["\n".join(["", *lines])]
            documents.append(Document(source, " ".join([f"{source} {number}.", *sentences])))
    quotations = [
        f'Verse {n}. "{" ".join([*lines[7].split()[:-1], "changed"])}"' for n, lines in enumerate(verses)
    ]
    commentary = Document(COMMENTARY, " ".join(quotations))
    return [*documents, commentary], words, verses


DOCUMENTS, WORDS, VERSES = make_documents()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Yield the study after one interrupted run, the run, its number of trainings, and its commands."""
    folder = tmp_path_factory.mktemp("study")
    text = folder / "corpus.jsonl"
    text.write_text("".join(json.dumps(document._asdict()) + "\n" for document in DOCUMENTS))
    verbs = ForkedVerbs("tests.without_reports")
    run_verb = VerbsThatStop(verbs, {2, 4, 6})
    study = Encoders(SCALES["smoke"], folder / "results", folder / "workdirs", str(text), run_verb=run_verb)
    run = next(runs_of(study.scale))
    pilot = list(study.commands_left(run))
    with pytest.raises(StudyError, match="stopped"):
        study.finish(run)
    assert list(study.commands_left(run)) == pilot[1:], "one training of the pilot is done"
    with pytest.raises(StudyError, match="stopped"):
        study.finish(run)
    after = list(study.commands_left(run))
    with pytest.raises(StudyError, match="stopped"):
        study.finish(run)
    assert list(study.commands_left(run)) == after[1:], "one fine-tuning is done"
    study.finish(run)
    yield study, run, len(pilot) + 1 + len(after), run_verb.commands


def test_a_stopped_run_repeats_nothing(finished):
    study, run, trainings, commands = finished
    assert list(study.commands_left(run)) == []
    measured = 1 + len(study.scale.tasks)
    assert len(commands) == len(set(commands)) == 1 + trainings + measured, "1 = preparing the text"
    before = study.result_file(run).read_bytes()
    study.finish(run)
    assert study.result_file(run).read_bytes() == before


def test_result_and_page_have_every_measurement(finished, tmp_path):
    study, run, *_ = finished
    results = study.read_results()
    result = results[run]
    assert set(result["fine_tuned"]) == set(study.scale.tasks)
    for task, found in result["fine_tuned"].items():
        assert found["steps"] > 0
        assert len(found["test"]["scores"]["accuracy"]) == result["text"]["samples"][task][TEST]
    assert len(result["pretrained"]["agreement"]["scores"]["accuracy"]) == study.scale.agreement_questions
    (curve,) = result["pretraining"]["curves"].values()
    assert curve[-1][0] == study.scale.steps
    page = tmp_path / "page.md"
    page.write_text("<!-- begin encoders.smoke -->\n<!-- end encoders.smoke -->\n")
    study.write_page(page)
    names = ("transfer", "lengths", "kernels", f"kernels_{run.model}")
    assert {path.name for path in tmp_path.glob("*.png")} == {f"page_smoke_{name}.png" for name in names}
    kernels = result["kernels"]
    assert list(kernels) == ["pretrained", study.scale.kernels_after]
    for way in ("forward", "backward"):
        before, after = (np.array(record[way]) for record in kernels.values())
        assert before.shape == after.shape == (study.scale.layers, 1, 128)
        assert not np.array_equal(before, after)
    planned, text = list(study.runs()), page.read_text()
    assert [other.model for other in planned] == [*DECIDING, *OTHERS]
    assert f"Not run: {len(planned) - 1} of {len(planned)}" in text


def test_other_seeds_use_the_rates_of_the_first_seed(finished, tmp_path):
    study, run, *_ = finished
    other = run._replace(seed=7)
    chosen = study.read_results()[run]["fine_tuned"]["verse"]["learning_rate"]
    assert study.rates_of(run, "verse") == study.scale.tuning_rates
    assert study.rates_of(other, "verse") == (chosen,)
    (command,) = (command for command in study.commands_left(other) if ",verse," in str(command))
    assert f"smoke,{run.model},7,verse,{chosen:g}" in str(command)
    elsewhere = replace(study, results=tmp_path)
    with pytest.raises(
        StudyError, match=rf"{run.model}\.7: needs the learning rates that {run.name} chooses"
    ):
        elsewhere.rates_of(other, "verse")


def test_the_pilot_chooses_the_settings(finished):
    study, run, *_ = finished
    tried = read_pilot(study, run.model)
    deviations = {(found["kernel_deviation"], found["table_deviation"]) for found in tried}
    assert deviations == set(study.scale.pilot.deviations)
    best = min(tried, key=lambda found: found["held_out_loss"])
    config = study.read_results()[run]["pretraining"]["config"]
    assert config["optimizer"]["learning_rate"] == best["learning_rate"]
    for name in ("kernel_deviation", "table_deviation"):
        assert config["model"]["encoder"][name] == best[name]
    assert f"**{best['held_out_loss']:.3f}**" in study.tables({})[0]


def test_splits_share_no_sample(finished):
    study, *_ = finished
    for task in study.scale.tasks:
        found = [
            {line for line in study.corpus.samples(task, split).read_text().splitlines()}
            for split in SPLITS
        ]
        assert all(found)
        for number, samples in enumerate(found):
            assert all(samples.isdisjoint(others) for others in found[number + 1 :]), task


def give(task, count=200, seed=0):
    found = TRANSFER_TASKS[task].give(DOCUMENTS, WORDS, np.random.default_rng(seed))
    return list(islice(found, count))


@pytest.mark.parametrize("task", TRANSFER_TASKS)
def test_samples_depend_on_the_seed_and_classes_are_balanced(task):
    samples = give(task)
    assert samples == give(task)
    assert samples != give(task, seed=1)
    counts = [sum(sample["label"] == name for sample in samples) for name in TRANSFER_TASKS[task].classes]
    assert min(counts) >= 0.3 * len(samples) / len(counts)
    assert all({"text", "label", *TRANSFER_TASKS[task].groups} <= set(sample) for sample in samples)


def test_labels_are_correct():
    texts = [" ".join(document.text.split()) for document in DOCUMENTS if document.source in PROSE]
    for sample in give("follows"):
        follows = any(f"{sample['text']} {sample['text_pair']}" in text for text in texts)
        assert follows == (sample["label"] == "yes")
    for sample in give("acceptable"):
        assert any(sample["text"] in text for text in texts) == (sample["label"] == "yes")
    for task, lengths in (("equal_fixed", {10}), ("equal_variable", set(range(6, 17)))):
        samples = give(task)
        assert {len(sample["text"].split()) for sample in samples} == lengths
        for sample in samples:
            pair = zip(sample["text"].split(), sample["text_pair"].split(), strict=True)
            assert sum(first != second for first, second in pair) == (sample["label"] == "no")


def test_an_unacceptable_sentence_has_one_change():
    by_kind = {kind: [s for s in give("acceptable", 400) if s["kind"] == kind] for kind in (0, 1)}
    texts = " ".join(" ".join(document.text.split()) for document in DOCUMENTS)
    originals = {" ".join(sorted(part.split())) for part in texts.split(".")}
    for sample in by_kind[0]:
        assert " ".join(sorted(sample["text"].rstrip(".").split())) in originals
    changed = [sample["text"] for sample in by_kind[1] if sample["label"] == "no"]
    assert changed
    assert all(
        ("were near" in text) + ("of this" in text) + ("s are here" in text) == 1 for text in changed
    )


def test_quotations_match_their_verses():
    quoting = [document.text for document in DOCUMENTS if document.source == COMMENTARY]
    translated = [document.text for document in DOCUMENTS if document.source == BIBLE]
    pairs = list(neighbouring_pairs(quoting, translated))
    assert [pair.translation for pair in pairs] == [lines[7] for lines in VERSES]
    for pair, lines in zip(pairs, VERSES, strict=True):
        assert pair.quotation.endswith(" changed")
        assert set(pair.neighbours) == {*lines[2:7], *lines[8:13]}
    assert list(neighbouring_pairs(['"of words that nobody has ever written"'], translated)) == []
    assert words_of("The LORD’s house") == {"the", "yahweh", "s", "house"}


def test_agreement_sentences_are_balanced_and_correct():
    examples = agreement_sentences(400, np.random.default_rng(0))["examples"]
    assert len({example["input"] + min(example["target_scores"]) for example in examples}) > 350
    conditions = [example["comment"] for example in examples]
    assert {conditions.count(condition) for condition in set(conditions)} == {100}
    plural = {"men", "women", "kings", "servants", "sons", "friends", "brothers", "captains", "children"}
    for example in examples:
        good = max(example["target_scores"], key=example["target_scores"].get)
        is_plural = example["input"].split()[1] in {*plural, "ladies"}
        assert (good.split()[0] in ("are", "were", "have")) == is_plural
        assert example["comment"].startswith("plural" if is_plural else "singular")


def test_a_text_without_sources_is_refused(tmp_path):
    text = tmp_path / "corpus.jsonl"
    text.write_text('{"text": "abc"}\n')
    study = Encoders(SCALES["smoke"], tmp_path / "results", tmp_path / "workdirs", str(text))
    with pytest.raises(StudyError, match="line 1: has no field 'source'"):
        study.finish(next(runs_of(study.scale)))
