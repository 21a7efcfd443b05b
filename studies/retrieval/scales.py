"""The scales of the study: a smoke run, scales for two cores, and scales of the paper's sizes."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from birdie_jax.objectives.mixtures import SMALL_MODEL_STAGES
from studies.retrieval.plans import (
    DEFAULT_MODEL,
    LANGUAGE,
    BookStage,
    ExtractionPlan,
    FineTuningPlan,
    MeasuringPlan,
    PhonebookPlan,
    Scale,
    Variant,
)

# The mixture of all scales with models of at most a few million parameters.
SMALL_MIXTURE = "small_models"

# If letters are tokens, sentences would be two thirds of a short book.
_SMALL_BOOKS = {"number_format": "####", "name_words": 1, "question_form": "names"}
_SMALL_MODEL = {
    "layers": 4,
    "features": 128,
    "state": 256,
    "mlp_features": 128,
}

_SMALL = Scale(
    name="small",
    preset="tiny.py",
    changes={
        "model": _SMALL_MODEL,
        "batching": {"rows": 4, "length": 256},
        "data": {"record_tokens": 4096},
        "optimizer": {"learning_rate": 3e-3, "warmup_steps": 200},
        "checkpoint": {"every_steps": 500},
        "train": {"log_every_steps": 50},
        "eval": {"rows": 4, "batches_per_arm": 1},
    },
    pretraining_tokens=6_144_000,
    squad_questions=500,
    mixture=SMALL_MIXTURE,
    stages=SMALL_MODEL_STAGES,
    decisions=40,
    phonebook=PhonebookPlan(
        books=_SMALL_BOOKS | {"min_entries": 2, "max_entries": 16, "max_numbers": 4},
        entries=(2, 4, 8, 16),
        numbers=(2, 4),
        entries_of_numbers=8,
        validation_questions=48,
        test_questions=192,
        # With books of all sizes from the start, 900 steps taught only the form of an answer.
        stages=(
            BookStage({"max_entries": 3, "max_numbers": 1}, 0.35),
            BookStage({"max_entries": 4, "max_numbers": 1}, 0.2),
            BookStage({"max_entries": 8, "max_numbers": 2}, 0.25),
            BookStage({}, 0.2),
        ),
    ),
    extraction=ExtractionPlan(
        passage_tokens=(64, 128, 192),
        training_questions=4096,
        validation_questions=96,
        test_questions=384,
    ),
    phonebook_tuning=FineTuningPlan((2e-3,), steps=2000, measured_every=100, rows=4, length=256),
    extraction_tuning=FineTuningPlan((1e-3, 2e-3), steps=600, measured_every=200, rows=4, length=288),
    measuring=MeasuringPlan(
        lengths=(32, 64, 128),
        questions_per_length=64,
        pairs=(4, 8, 16),
        recall_vocabulary=192,
        recall_sequences=16,
        stories=192,
        story_tokens=256,
        window=256,
        documents=24,
    ),
    pieces=512,
)


def _paper_scale(name: str, preset: str, text: str) -> Scale:
    """Return a scale with the paper's sizes, budgets and corpus."""
    return Scale(
        name=name,
        preset=preset,
        changes={"data": {"vocab_size": 32_000}},
        # 0 = the preset's steps.
        pretraining_tokens=0,
        mixture="birdie",
        stages="",
        decisions=0,
        phonebook=PhonebookPlan(
            books={},
            entries=(8, 32, 128, 512),
            numbers=(2, 4, 8, 16, 32),
            entries_of_numbers=512,
            validation_questions=64,
            test_questions=512,
        ),
        extraction=ExtractionPlan(
            passage_tokens=(128, 256, 512, 1024, 1792),
            training_questions=65_536,
            validation_questions=256,
            test_questions=2048,
        ),
        phonebook_tuning=FineTuningPlan(
            (2e-5, 5e-5, 1e-4), steps=250, measured_every=50, rows=32, length=16_384
        ),
        extraction_tuning=FineTuningPlan(
            (2e-5, 5e-5, 1e-4), steps=250, measured_every=50, rows=32, length=2048
        ),
        measuring=MeasuringPlan(
            lengths=(64, 128, 256, 512, 1024),
            questions_per_length=128,
            pairs=(8, 32, 64),
            recall_vocabulary=8192,
            recall_sequences=32,
            stories=1024,
            story_tokens=1024,
            window=2048,
            documents=1000,
        ),
        pieces=32_000,
        text=text,
        validation_fraction=0.01,
    )


_SMOKE = replace(
    _SMALL,
    name="smoke",
    changes={
        "model": {"layers": 1, "features": 32, "state": 32, "mlp_features": 32},
        "batching": {"rows": 2, "length": 128, "prefetch": 2},
        "data": {"record_tokens": 512},
        "optimizer": {"learning_rate": 3e-3, "warmup_steps": 5},
        "checkpoint": {"every_steps": 10},
        "train": {"log_every_steps": 5},
        "eval": {"rows": 1, "batches_per_arm": 1},
        "bandit": {
            "critic_layers": 1,
            "critic_features": 8,
            "critic_state": 8,
            "critic_updates": 3,
            "candidates": 16,
            "average_best": 2,
        },
    },
    pretraining_tokens=20 * 256,
    decisions=4,
    phonebook=PhonebookPlan(
        books=_SMALL_BOOKS | {"min_entries": 2, "max_entries": 3, "max_numbers": 2, "question": "after"},
        entries=(2, 3),
        numbers=(2,),
        entries_of_numbers=3,
        validation_questions=4,
        test_questions=8,
    ),
    extraction=ExtractionPlan(
        passage_tokens=(48, 64),
        training_questions=32,
        validation_questions=4,
        test_questions=8,
        max_tokens=8,
    ),
    phonebook_tuning=FineTuningPlan((1e-3, 3e-3), steps=4, measured_every=2, rows=2, length=160),
    extraction_tuning=FineTuningPlan((1e-3,), steps=2, measured_every=2, rows=2, length=160),
    measuring=MeasuringPlan(
        lengths=(32,),
        questions_per_length=4,
        pairs=(4,),
        recall_vocabulary=64,
        recall_sequences=2,
        stories=4,
        story_tokens=320,
        window=128,
        documents=2,
    ),
    pieces=400,
    models=(DEFAULT_MODEL,),
    seeds=(0,),
    validation_fraction=0.3,
)

# The value of the mixture. docs/measurements/retrieval.md has the rules.
_WORTH_SEEDS = tuple(range(10, 16))
_WORTH = replace(
    _SMALL,
    name="worth",
    phonebook=PhonebookPlan(
        books=_SMALL_BOOKS | {"min_entries": 2, "max_entries": 8, "max_numbers": 1},
        entries=(2, 4, 8),
        numbers=(),
        entries_of_numbers=8,
        validation_questions=64,
        test_questions=192,
        stages=(BookStage({"max_entries": 3}, until=2), BookStage({}, until=8, steps=1000)),
    ),
    phonebook_tuning=FineTuningPlan((2e-3,), steps=4000, measured_every=50, rows=4, length=128, seeds=3),
    extraction_tuning=FineTuningPlan((1e-3,), steps=600, measured_every=600, rows=4, length=288),
    models=(DEFAULT_MODEL,),
    seeds=_WORTH_SEEDS,
    order=(
        (("mixture_fixed_causal", "causal_lm_causal", "scratch", "causal_lm_fewer"), _WORTH_SEEDS),
        (("ul2_causal",), _WORTH_SEEDS[:3]),
        (("mixture_fixed",), _WORTH_SEEDS[:3]),
    ),
    measured=("copying", LANGUAGE),
    language_positions=890_628,
)

# Whether the result of `worth` depends on its batch: rows of 320 positions instead of 128.
_WIDE_SEEDS = (40, 41, 42)
_WORTH_WIDE = replace(
    _WORTH,
    name="worth_wide",
    phonebook_tuning=replace(_WORTH.phonebook_tuning, length=320),
    seeds=_WIDE_SEEDS,
    order=((("causal_lm_causal", "mixture_fixed_causal"), _WIDE_SEEDS),),
)

# Compares memories: models with matrix states and as many parameters as the Gated SSM+ of `worth`. Two
# models have the usual sizes of the field. Two have as many numbers of state as the Gated SSM+: 256 a
# layer, 1,024 in all.
_MEMORY = replace(
    _WORTH,
    name="memory",
    variants={
        "gated_deltanet": Variant("gated_deltanet", {"mlp_features": 208}),
        "mamba2": Variant("mamba2", {"layers": 8}),
        "gated_deltanet_equal_state": Variant(
            "gated_deltanet", {"state": 32, "mlp_features": 512, "gated_deltanet": {"heads": 2}}
        ),
        "mamba2_equal_state": Variant(
            "mamba2",
            {
                "layers": 8,
                "features": 248,
                "state": 128,
                "mamba2": {"head_features": 32, "state_size": 1},
            },
        ),
    },
    models=("gated_deltanet", "mamba2", "gated_deltanet_equal_state", "mamba2_equal_state"),
    beside="worth",
    seeds=_WORTH_SEEDS[:3],
    order=tuple(
        ((procedure,), _WORTH_SEEDS[:3])
        for procedure in ("mixture_fixed_causal", "causal_lm_causal", "scratch")
    ),
)

# When reading in both directions matters: half and all of the state, the question before and after.
_DIRECTION_SEEDS = tuple(range(20, 25))
_DIRECTION = replace(
    _WORTH,
    name="direction",
    phonebook=replace(
        _WORTH.phonebook,
        books=_SMALL_BOOKS | {"min_entries": 2, "max_entries": 16, "max_numbers": 1},
        entries=(2, 8, 16),
        stages=(
            BookStage({"max_entries": 3}, until=2, steps=1000),
            BookStage({}, until=16, learned=1.0),
        ),
        question_places=("after", "before", "both"),
    ),
    phonebook_tuning=replace(_WORTH.phonebook_tuning, measured_every=100, length=256),
    extraction_tuning=replace(_WORTH.extraction_tuning, steps=0),
    variants={f"state_{channels}": Variant(DEFAULT_MODEL, {"state": channels}) for channels in (64, 128)},
    models=("state_64", "state_128"),
    seeds=_DIRECTION_SEEDS,
    order=((("mixture_fixed_causal", "mixture_fixed"), _DIRECTION_SEEDS),),
)

# Whether steering pays at three times the tokens of `studies.steering`, in J and in looking up. Steering
# validates 121 times, fixed shares 5 times: 26 arms of 2 batches of 4 rows of 256 positions, forward alone.
# A position of training costs three of these.
_STEERING_POSITIONS = 6_144_000 + (121 - 5) * 26 * 2 * 4 * 256 // 3
_VERDICT_SEEDS = tuple(range(30, 36))
_VERDICT = replace(
    _WORTH,
    name="verdict",
    changes={**_WORTH.changes, "eval": {"rows": 4, "batches_per_arm": 2}},
    mixture="small_models_even",
    stages="",
    decisions=120,
    seeds=_VERDICT_SEEDS,
    steering_positions=_STEERING_POSITIONS,
    order=((("steered", "best_fixed", "uniform", "untuned", "searched", "published"), _VERDICT_SEEDS),),
)

SCALES: Mapping[str, Scale] = MappingProxyType(
    {
        scale.name: scale
        for scale in (
            _SMOKE,
            _SMALL,
            _WORTH,
            _WORTH_WIDE,
            _MEMORY,
            _DIRECTION,
            # Checks steps and rates with a seed that no result uses.
            replace(
                _DIRECTION,
                name="direction_pilot",
                seeds=(100,),
                order=((("mixture_fixed_causal", "mixture_fixed"), (100,)),),
            ),
            _VERDICT,
            _paper_scale("110m", "birdie_110m.py", "pile/**/*.jsonl.zst"),
            _paper_scale("1_4b", "birdie_1_4b.py", "pile/**/*.jsonl.zst"),
        )
    }
)
