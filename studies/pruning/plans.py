"""The scales of the study, its models and their measurements."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

MODELS = ("mamba", "gated_ssm", "hawk")
"""The pruned models. The first one has every seed."""

SMALLER = "smaller"
"""The suffix of a smaller model's name. Smaller models are measured without pruning."""

INFLUENCE, UNIFORM, RANDOM, RECENCY, ENTRY_NORM = "influence", "uniform", "random", "recency", "entry_norm"
"""The policies."""

SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.3, 0.1)
"""The final shares of the schedule."""

JUDGED_SHARES = (0.9, 0.7, 0.5, 0.3, 0.1)
"""The shares that decide the claim."""


class Variant(NamedTuple):
    """Conditions that differ only by policy, share and length of context.

    Attributes:
        name: the name, also of its saved cells.
        policies: the policies.
        settings: the pruning settings except policy and share, each as NAME=VALUE.
        shares: the shares; empty = all shares of the scale.
        contexts: the lengths of contexts; empty = the scale's main context.
        all_seeds: whether all seeds are measured, or only the first.
    """

    name: str
    policies: tuple[str, ...]
    settings: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    contexts: tuple[int, ...] = ()
    all_seeds: bool = False


MAIN = "main"
"""The variant whose cells decide the claim."""


def random_variants(seeds: int, shares: tuple[float, ...] = ()) -> tuple[Variant, ...]:
    """Return a variant for each seed of random choices."""
    return tuple(
        Variant(f"{RANDOM}_{seed}", (RANDOM,), (f"seed={seed}",), shares, all_seeds=True)
        for seed in range(seeds)
    )


@dataclass(frozen=True)
class Tuning:
    """A fine-tuning of a pre-trained model.

    Attributes:
        steps: the train steps.
        rows: the rows of a batch.
        length: the positions of a row.
        learning_rate: the peak rate, after a warm-up over a tenth of the steps; on text a cosine to 0
            follows.
        max_pruned: the largest share of a sample's tokens that the second loss drops; 0 = no second loss.
    """

    steps: int
    rows: int
    length: int
    learning_rate: float
    max_pruned: float = 0.0


@dataclass(frozen=True)
class Needles:
    """Items among noise: the settings of the task noisy_recall.

    Attributes:
        stages: the tokens of a context and the items among them, from few to many; stages have equal
            numbers of steps, and the last one is measured.
        values: the number of distinct values.
        questions: the number of questions for every condition.
        shares: the shares to measure, in addition to all tokens.
        policies: the policy and its pruning settings, by name.
        learned: the share of right tokens of the last stage that ends training; 0 = all steps are taken.
    """

    stages: tuple[tuple[int, int], ...]
    values: int
    questions: int
    shares: tuple[float, ...]
    policies: Mapping[str, tuple[str, ...]]
    learned: float = 0.0


class Identifiers(NamedTuple):
    """The scored tokens are of identifiers of Python code that the context has far from its end.

    Attributes:
        nearest: the least number of tokens since an identifier was last seen.
        farthest: the largest number.
        least_gain: the least fall of the loss from the shortest context to the longest, in nats per token,
            for which policies are compared.
    """

    nearest: int
    farthest: int
    least_gain: float


NEEDLE_POLICIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        INFLUENCE: (INFLUENCE,),
        "influence, state": (INFLUENCE, "readout=state"),
        UNIFORM: (UNIFORM,),
        RANDOM: (RANDOM,),
        RECENCY: (RECENCY,),
        ENTRY_NORM: (ENTRY_NORM,),
    }
)


@dataclass(frozen=True)
class Scale:
    """The sizes of a study.

    Attributes:
        name: the name.
        layers: the number of layers of a model.
        features: the width of a model; the recurrence has twice as many channels.
        smaller_layers: the number of layers of a smaller model.
        smaller_features: the width of a smaller model.
        pieces: the vocabulary size of the tokenizer.
        validation_fraction: the share of held-out documents.
        rows: the rows of a pre-training batch.
        length: the positions of a row.
        states: the states per channel of mamba.
        tokens: the positions of pre-training.
        learning_rate: the peak rate of pre-training.
        seeds: the seeds of the first model; the other models use the first seed, without `identifiers`.
        windows: the number of windows of held-out text.
        contexts: the lengths of contexts for dense models; windows have the longest.
        main_context: the length of context that decides the claim.
        continuation: the number of scored tokens after a context.
        shares: the final shares of the schedule.
        variants: the variants to measure on text; the main one first.
        tuned_variant: the variant to measure after fine-tuning on text.
        needles: the items among noise.
        queries: the positions of an item's query; there is a fine-tuning for each.
        needle_tuning: the fine-tuning for one position.
        text_tuning: the fine-tuning on text, with and without a second loss; None = no fine-tuning on text.
        identifiers: the tokens that windows score; None = the tokens after any place of the text.
    """

    name: str
    layers: int
    features: int
    smaller_layers: int
    smaller_features: int
    pieces: int
    validation_fraction: float
    rows: int
    length: int
    states: int
    tokens: int
    learning_rate: float
    seeds: tuple[int, ...]
    windows: int
    contexts: tuple[int, ...]
    main_context: int
    continuation: int
    shares: tuple[float, ...]
    variants: tuple[Variant, ...]
    tuned_variant: Variant
    needles: Needles
    queries: tuple[str, ...]
    needle_tuning: Tuning
    text_tuning: Tuning | None
    identifiers: Identifiers | None = None

    @property
    def steps(self) -> int:
        """The steps of pre-training."""
        return self.tokens // (self.rows * self.length)


_SMALL = Scale(
    name="small",
    layers=6,
    features=128,
    smaller_layers=4,
    smaller_features=96,
    pieces=2048,
    validation_fraction=0.04,
    rows=4,
    length=512,
    states=16,
    tokens=4_096_000,
    learning_rate=2e-3,
    seeds=(0, 1, 2),
    windows=300,
    contexts=(256, 512, 1024),
    main_context=512,
    continuation=100,
    shares=SHARES,
    variants=(
        Variant(MAIN, (INFLUENCE, UNIFORM, RECENCY), all_seeds=True),
        *random_variants(1, JUDGED_SHARES),
        # Shares that require intervals have five seeds.
        *random_variants(5, (0.3, 0.1))[1:],
        Variant(ENTRY_NORM, (ENTRY_NORM,), (), (0.5, 0.3, 0.1)),
        Variant("state", (INFLUENCE,), ("readout=state",), (0.5, 0.3, 0.1)),
        Variant("constant", (INFLUENCE, RECENCY), ("schedule=constant",), (0.3, 0.1)),
        Variant("l2", (INFLUENCE,), ("norm=l2",), (0.3, 0.1)),
        Variant("signed", (INFLUENCE,), ("norm=signed",), (0.3, 0.1)),
        Variant("lengths", (INFLUENCE, UNIFORM, RECENCY), (), (0.1,), (256, 1024)),
    ),
    tuned_variant=Variant("tuned", (INFLUENCE, UNIFORM, RECENCY), (), (0.5, 0.1)),
    needles=Needles(
        stages=((16, 1), (32, 2), (64, 4)),
        values=16,
        questions=256,
        shares=(0.7, 0.5, 0.3, 0.1),
        policies=NEEDLE_POLICIES,
    ),
    queries=("none", "first", "last"),
    needle_tuning=Tuning(steps=900, rows=2, length=512, learning_rate=2e-3),
    text_tuning=Tuning(steps=400, rows=2, length=512, learning_rate=5e-4, max_pruned=0.9),
)

# Far tokens matter here: the scored identifiers were last seen 128 tokens back or more, and the query after
# the noise names one of four items.
_STAKE = replace(
    _SMALL,
    name="stake",
    validation_fraction=0.12,
    seeds=(10, 11, 12, 13, 14),
    windows=600,
    contexts=(64, 512),
    continuation=2,
    shares=JUDGED_SHARES,
    variants=(
        Variant(MAIN, (INFLUENCE, UNIFORM, RECENCY, ENTRY_NORM), all_seeds=True),
        *random_variants(2),
    ),
    needles=replace(_SMALL.needles, learned=0.8),
    queries=("last",),
    needle_tuning=replace(_SMALL.needle_tuning, steps=6000),
    text_tuning=None,
    identifiers=Identifiers(nearest=128, farthest=512, least_gain=0.2),
)

_SMOKE = Scale(
    name="smoke",
    layers=2,
    features=16,
    smaller_layers=1,
    smaller_features=16,
    pieces=400,
    validation_fraction=0.4,
    rows=2,
    length=32,
    states=2,
    tokens=128,
    learning_rate=2e-3,
    seeds=(0,),
    windows=12,
    contexts=(16,),
    main_context=16,
    continuation=4,
    shares=(0.5, 0.1),
    variants=(
        Variant(MAIN, (INFLUENCE, UNIFORM, RECENCY), all_seeds=True),
        *random_variants(1),
    ),
    tuned_variant=Variant("tuned", (INFLUENCE,), (), (0.1,)),
    needles=Needles(
        stages=((6, 1), (12, 2)),
        values=8,
        questions=4,
        shares=(0.2,),
        policies={INFLUENCE: (INFLUENCE,), RECENCY: (RECENCY,)},
    ),
    queries=("last",),
    needle_tuning=Tuning(steps=2, rows=2, length=32, learning_rate=2e-3),
    text_tuning=Tuning(steps=2, rows=2, length=32, learning_rate=5e-4, max_pruned=0.9),
)

_SMOKE_STAKE = replace(
    _SMOKE,
    name="smoke_stake",
    seeds=(0, 1),
    contexts=(8, 16),
    continuation=1,
    needles=replace(_SMOKE.needles, policies=NEEDLE_POLICIES, learned=0.8),
    text_tuning=None,
    identifiers=Identifiers(nearest=1, farthest=16, least_gain=0.2),
)

SCALES: Mapping[str, Scale] = MappingProxyType(
    {scale.name: scale for scale in (_SMOKE, _SMOKE_STAKE, _SMALL, _STAKE)}
)


class Run(NamedTuple):
    """The pre-training and measurement of a model, and its fine-tuning if it is not a smaller model.

    Attributes:
        scale: the name of the scale.
        model: the name of the model; a smaller model's name ends with an underscore and `SMALLER`.
        seed: the seed of all random numbers.
    """

    scale: str
    model: str
    seed: int

    @property
    def name(self) -> str:
        """The name of the run within its scale, as --only matches it."""
        return f"{self.model}.{self.seed}"

    @property
    def is_smaller(self) -> bool:
        """Whether the model is a smaller one, measured without pruning."""
        return self.model.endswith(f"_{SMALLER}")

    @property
    def mixer(self) -> str:
        """The name of the model without its size."""
        return self.model.removesuffix(f"_{SMALLER}")


def runs_of(scale: Scale) -> Iterator[Run]:
    """Yield the runs of a scale: each model and its smaller one, then the first model's other seeds.

    With `identifiers` each model has all seeds, and there are no smaller models.
    """
    if scale.identifiers is not None:
        yield from (Run(scale.name, model, seed) for seed in scale.seeds for model in MODELS)
        return
    first, *others = scale.seeds
    for model in MODELS:
        yield Run(scale.name, model, first)
        yield Run(scale.name, f"{model}_{SMALLER}", first)
    for seed in others:
        yield Run(scale.name, MODELS[0], seed)
