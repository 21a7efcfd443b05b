"""Sections without plots: predictions, examples of arms, and the configuration."""

import json
from typing import Any

from birdie_jax.reporting.page_text import KEPT, VISIBLE
from birdie_jax.reporting.run_record import RunRecord, Sample
from birdie_jax.reporting.section import Section, SectionKind
from birdie_jax.reporting.svg import class_colour, css_colour

EXAMPLES_OF_ARM = 2  # more would make a page with 104 arms too long


def make_arm_examples(run: RunRecord, scalars: tuple[str, ...]) -> Section | None:
    """Return the section of the arms' examples, or None if the run has no arms."""
    if not run.arms:
        return None
    classes = [
        (group, css_colour(class_colour(index)), [run.arms[arm] for arm in arms])
        for index, (group, arms) in enumerate(run.groups.items())
    ]
    return Section(
        anchor="examples",
        link="Examples",
        title="Examples",
        template="arm_examples.html",
        values={"classes": classes, "examples_of_arm": EXAMPLES_OF_ARM, "visible": VISIBLE, "kept": KEPT},
    )


ARM_EXAMPLES = SectionKind(make_arm_examples)


# More would make the page of a run with hundreds of arms too long.
_MAX_SAMPLES = 24
_READ = 240  # characters


def make_masked_samples(run: RunRecord, scalars: tuple[str, ...]) -> Section | None:
    """Return the section of hidden tokens, or None if the run has predicted none."""
    del scalars
    record = run.predicted
    samples = [sample for sample in record.samples if sample.in_place][:_MAX_SAMPLES] if record else []
    if record is None or not samples:
        return None
    hidden = [token for sample in samples for token in sample.hidden]
    right = sum(token.is_right for token in hidden)
    return Section(
        anchor="masked",
        link="Masked tokens",
        title="Masked tokens",
        template="masked_samples.html",
        values={
            "step": record.step,
            "samples": [(sample.arm, _parts(sample)) for sample in samples],
            "right": right,
            "hidden": len(hidden),
        },
    )


def _parts(sample: Sample) -> list[tuple[str, object]]:
    """Return each text with the hidden token after it; None after the last text."""
    return list(zip(sample.texts, [*sample.hidden, None], strict=True))


def make_predicted(run: RunRecord, scalars: tuple[str, ...]) -> Section | None:
    """Return the section of predicted targets, or None if the run has predicted none."""
    del scalars
    record = run.predicted
    samples = [sample for sample in record.samples if not sample.in_place] if record else []
    if record is None or not samples:
        return None
    return Section(
        anchor="predicted",
        link="Predicted",
        title="What it predicts",
        introduction=f"The first held-out example of each class at step {record.step:,}: the end of the "
        "context, the first tokens of the right answer, and for each token the most probable one after the "
        "right tokens before it.",
        template="predicted.html",
        values={
            "samples": [
                (sample, sum(token.is_right for token in sample.hidden), _cut(sample.texts[0]))
                for sample in samples
            ]
        },
    )


def _cut(text: str) -> str:
    return text if len(text) <= _READ else f"… {text[-_READ:]}"


PREDICTED = SectionKind(make_predicted)
MASKED_SAMPLES = SectionKind(make_masked_samples)


def make_configuration(run: RunRecord, scalars: tuple[str, ...]) -> Section | None:
    """Return the section of config.json, or None if the run has no configuration."""
    if not run.config:
        return None
    return Section(
        anchor="configuration",
        link="Configuration",
        title="Configuration",
        template="configuration.html",
        values={"tables": config_tables(run.config)},
    )


def config_tables(config: dict[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the sections of the configuration with their rows of field and value."""
    top = [(name, json.dumps(value)) for name, value in config.items() if not isinstance(value, dict)]
    tables = [("run", top)] if top else []
    for name, section in config.items():
        if isinstance(section, dict):
            fields = [
                (key, json.dumps(value, indent=1, ensure_ascii=False)) for key, value in section.items()
            ]
            tables.append((name, fields))
    return tables


CONFIGURATION = SectionKind(make_configuration)
