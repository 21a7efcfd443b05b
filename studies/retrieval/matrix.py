"""What the study runs at a scale: procedures x models x seeds, in order."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from studies.retrieval.plans import DEFAULT_MODEL, Scale

# Stands for the mixture of the scale.
_MIXTURE_OF_SCALE = ""
# Stands for the policy of the scale: fixed shares, or a schedule of them.
_POLICY_OF_SCALE = ""


@dataclass(frozen=True)
class Procedure:
    """A way of pre-training.

    Attributes:
        title: what tables call it.
        mixture: the mixture of objectives; empty = that of the scale.
        policy: the bandit's policy; empty = that of the scale.
        reward: what an action of the bandit earns.
        bidirectional: whether the context is read in both directions, then and in fine-tuning.
    """

    title: str
    mixture: str = _MIXTURE_OF_SCALE
    policy: str = "fixed"
    reward: str = "published"
    bidirectional: bool = True


# The first four decide: procedure and reading direction vary separately.
PROCEDURES: Mapping[str, Procedure] = MappingProxyType(
    {
        "causal_lm_causal": Procedure("causal LM, read causally", "causal_lm", bidirectional=False),
        "causal_lm": Procedure("causal LM, read both ways", "causal_lm"),
        "mixture_causal": Procedure("mixture, read causally", policy=_POLICY_OF_SCALE, bidirectional=False),
        "mixture": Procedure("mixture, read both ways", policy=_POLICY_OF_SCALE),
        "mixture_fixed": Procedure("mixture of fixed shares, read both ways"),
        "birdie": Procedure("Birdie (bandit), read both ways", policy="birdie"),
        "thompson": Procedure(
            "Thompson sampling, read both ways",
            policy="thompson",
            reward="learning_progress",
        ),
        "birdie_causal": Procedure("Birdie (bandit), read causally", policy="birdie", bidirectional=False),
        "ul2": Procedure("UL2, read both ways", "ul2"),
        "fixed_ratio": Procedure("fixed ratio (BFR), read both ways", "bfr"),
    }
)
_DECIDING = ("causal_lm_causal", "causal_lm", "mixture_causal", "mixture")
# Of the other models these alone.
_PROCEDURES_OF_OTHER_MODELS = ("causal_lm_causal", "birdie")


class Run(NamedTuple):
    """A model that is pre-trained, fine-tuned and measured.

    Attributes:
        scale: the name of its scale.
        model: the name of the model.
        procedure: the name of the procedure.
        seed: the seed of everything that is drawn.
    """

    scale: str
    model: str
    procedure: str
    seed: int

    @property
    def name(self) -> str:
        """The name of the run within its scale, as --only matches it."""
        return f"{self.model}.{self.procedure}.{self.seed}"


def runs_of(scale: Scale) -> Iterator[Run]:
    """Give the runs of a scale, what decides first.

    The deciding procedures of the default model with all seeds come first, seed by seed; then the bandit;
    then the rest of the matrix with its first seed, and at last with the others.
    """

    def give(model: str, procedures: tuple[str, ...], seeds: tuple[int, ...]) -> Iterator[Run]:
        for seed in seeds:
            for procedure in procedures:
                yield Run(scale.name, model, procedure, seed)

    yield from give(DEFAULT_MODEL, _DECIDING, scale.seeds)
    yield from give(DEFAULT_MODEL, ("birdie",), scale.seeds)
    rest = tuple(name for name in PROCEDURES if name not in (*_DECIDING, "birdie"))
    others = tuple(model for model in scale.models if model != DEFAULT_MODEL)
    for seeds in (scale.seeds[:1], scale.seeds[1:]):
        yield from give(DEFAULT_MODEL, rest, seeds)
        for model in others:
            yield from give(model, _PROCEDURES_OF_OTHER_MODELS, seeds)
