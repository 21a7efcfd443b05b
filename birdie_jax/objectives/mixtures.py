"""The papers' mixtures, and mixtures for small models. Each is a list of arms for rows of a given length.

One rule adapts all of them to the length of a row. The papers' text lengths are for rows of 2,048 tokens.
They shrink in proportion for shorter rows and stay the same for longer rows. No arm reads more text than
fits a row (see `Objective.text_limit`). An arm is left out if its minimum number of tokens does not fit.
The remaining arms of its class share its weight. A class without arms is left out.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

from birdie_jax import vocabulary
from birdie_jax.objectives.arms import Arm, Mixture
from birdie_jax.objectives.checks import refusal
from birdie_jax.objectives.registry import make_objective
from birdie_jax.registry import Registry

_PAPER_LENGTH = 2048
_RATES = (0.05, 0.15, 0.5)
_WIDTHS = (3, 8, 32)
_BLOCK_LENGTHS = ((128, 256), (512, 1024))

# An arm: its name, its objective's name and its objective's parameters.
_Specification = tuple[str, str, dict]
# A class of arms: its name, its share of the mixture and its arms.
_Class = tuple[str, float, list[_Specification]]


def make_mixture(name: str, length: int) -> Mixture:
    """Make the mixture called `name` for rows of `length` positions.

    Args:
        name: a key of `MIXTURES`.
        length: positions in a packed row.

    Raises:
        ValueError: the name is unknown, or none of the mixture's arms fits such rows.
    """
    arms = [arm for one_class in MIXTURES.find(name)(length) for arm in _fitting(*one_class, length)]
    if not arms:
        raise refusal(f"mixture {name!r}", "length", length, "a length that at least one of its arms fits")
    return Mixture(tuple(arms))


def _fitting(group: str, share: float, specifications: list[_Specification], length: int) -> list[Arm]:
    """Build the arms of a class that fit rows of `length`, and split the class's share evenly."""
    fitting = []
    for arm_name, objective_name, parameters in specifications:
        max_length = parameters.get("max_length")
        unbounded = make_objective(objective_name, **{**parameters, "max_length": None})
        limit = unbounded.text_limit(length)
        maximum = limit if max_length is None else min(limit, max_length)
        if maximum >= unbounded.minimum_tokens:
            fitting.append((arm_name, replace(unbounded, max_length=max_length)))
    return [Arm(arm_name, objective, group, share / len(fitting)) for arm_name, objective in fitting]


def _scaled(paper_length: int, length: int) -> int:
    return max(1, paper_length * min(length, _PAPER_LENGTH) // _PAPER_LENGTH)


def _span_arms(objective: str, paper_lengths: tuple[int, ...], length: int) -> list[_Specification]:
    """Return an arm for each rate, width and length that cuts out at least about half a mean span.

    Two rules come from the published code: the minimum length, width / rate / 2, and the maximum length of
    256 for span corruption with spans of 3 tokens. The first rule keeps 26 of 27 arms there. It drops
    rate 5 %, width 32, length 256.
    """
    arms = []
    for rate, width, paper_length in product(_RATES, _WIDTHS, paper_lengths):
        if objective == "span_corruption" and width == 3 and paper_length > 256:
            continue
        max_length = _scaled(paper_length, length)
        min_length = int(width / rate / 2)
        name = f"{objective}_r{round(100 * rate)}_w{width}_l{max_length}"
        parameters = {"rate": rate, "mean_span": width, "min_length": min_length, "max_length": max_length}
        if min_length <= max_length:
            arms.append((name, objective, parameters))
    return arms


def _span_corruption(length: int) -> list[_Specification]:
    return _span_arms("span_corruption", (256, 512, 1024, 2048), length)


def _full_span_corruption(length: int) -> list[_Specification]:
    return _span_arms("full_span_corruption", (384, 768, 1536), length)


def _full_span_corruption_deshuffling(length: int) -> list[_Specification]:
    return _span_arms("full_span_corruption_deshuffling", (384, 768, 1536), length)


def _block_arms(objective: str, prefix: str, length: int, **parameters) -> list[_Specification]:
    arms = []
    for low, high in _BLOCK_LENGTHS:
        low, high = _scaled(low, length), _scaled(high, length)  # noqa: PLW2901
        bounds = {"min_length": low, "max_length": high}
        arms.append((f"{prefix}_l{low}_{high}", objective, {**parameters, **bounds}))
    return arms


def _copying(length: int) -> list[_Specification]:
    return _block_arms("copying", "copying", length)


def _deshuffling(length: int) -> list[_Specification]:
    return [
        arm
        for rate in (0.5, 1.0)
        for arm in _block_arms("deshuffling", f"deshuffling_r{round(100 * rate)}", length, rate=rate)
    ]


def _selective_copying(length: int) -> list[_Specification]:
    arms = []
    for (low, high), spans, query_first in product(((384, 768), (768, 1536)), (1, 2, 3, 4), (True, False)):
        low, high = _scaled(low, length), _scaled(high, length)  # noqa: PLW2901
        name = f"selective_copying_s{spans}_{'first' if query_first else 'last'}_l{low}_{high}"
        bounds = {"min_length": low, "max_length": high}
        arms.append((name, "selective_copying", {"spans": spans, "query_first": query_first, **bounds}))
    return arms


def _single(objective: str) -> list[_Specification]:
    return [(objective, objective, {})]


def _causal_lm(length: int) -> list[_Class]:
    return [("causal_lm", 1.0, _single("causal_lm"))]


def _masked_lm(length: int) -> list[_Class]:
    """Return masked language modelling alone, with the shares of Devlin et al.: 15 %, split 80/10/10."""
    return [("masked_lm", 1.0, _single("masked_lm"))]


def _birdie(length: int) -> list[_Class]:
    """Return the 104 arms in 7 classes that the bandit starts from. The classes are equally likely.

    Source: the published code of November 2024. The paper's Figure 3 names the classes but not the arms.
    """
    both_full = _full_span_corruption(length) + _full_span_corruption_deshuffling(length)
    classes = {
        "span_corruption": _span_corruption(length),
        "full_span_corruption": both_full,
        "copying": _copying(length),
        "deshuffling": _deshuffling(length),
        "selective_copying": _selective_copying(length),
        "prefix_lm": _single("prefix_lm"),
        "causal_lm": _single("causal_lm"),
    }
    return [(group, 1.0, arms) for group, arms in classes.items()]


def _bfr(length: int) -> list[_Class]:
    """Return Birdie-Fixed Ratio: every objective of the EMNLP paper's Table 1.

    The paper's ratios were "found via ablations" and are not printed. Here the eight objectives are equally
    likely. The arms are the same as in `birdie`; only the ratios differ.
    """
    classes = {
        "causal_lm": _single("causal_lm"),
        "prefix_lm": _single("prefix_lm"),
        "span_corruption": _span_corruption(length),
        "full_span_corruption": _full_span_corruption(length),
        "full_span_corruption_deshuffling": _full_span_corruption_deshuffling(length),
        "deshuffling": _deshuffling(length),
        "copying": _copying(length),
        "selective_copying": _selective_copying(length),
    }
    return [(group, 1.0, arms) for group, arms in classes.items()]


def _pt5(length: int) -> list[_Class]:
    """Return the early draft's PT5: causal LM, prefix LM, span corruption, deshuffling and copying.

    The draft does not print its ratios. Here the five are equally likely, with the arms of `birdie`.
    """
    classes = {
        "causal_lm": _single("causal_lm"),
        "prefix_lm": _single("prefix_lm"),
        "span_corruption": _span_corruption(length),
        "deshuffling": _deshuffling(length),
        "copying": _copying(length),
    }
    return [(group, 1.0, arms) for group, arms in classes.items()]


def _ul2(length: int) -> list[_Class]:
    """Return the seven denoisers of UL2 (Tay et al. 2023, Table 1), with a marker for each kind.

    R: rate 15 %, mean spans 3 and 8. S: prefix LM. X: rate 50 % with mean spans 3, 8 and 64, and rate 15 %
    with mean span 64. All seven are equally likely. Texts are as long as the row and the sentinels allow.
    """

    def noised(rate: float, width: int, marker: int) -> _Specification:
        parameters = {"rate": rate, "mean_span": width, "marker": marker}
        return (f"span_corruption_r{round(100 * rate)}_w{width}", "span_corruption", parameters)

    regular = [noised(0.15, width, vocabulary.UL2_REGULAR) for width in (3, 8)]
    sequential: list[_Specification] = [("prefix_lm", "prefix_lm", {"marker": vocabulary.UL2_SEQUENTIAL})]
    settings = ((0.5, 3), (0.5, 8), (0.15, 64), (0.5, 64))
    extreme = [noised(rate, width, vocabulary.UL2_EXTREME) for rate, width in settings]
    return [("regular", 2.0, regular), ("sequential", 1.0, sequential), ("extreme", 4.0, extreme)]


def _tiny(length: int) -> list[_Class]:
    """Return one arm for each objective of the paper, for short rows (256) and small models.

    Lengths are shares of the row. Causal LM has 30 %, so a small model learns to write. The other seven
    share the rest evenly.
    """

    def within(low: int, high: int) -> dict:
        return {"min_length": max(1, length * low // 32), "max_length": max(1, length * high // 32)}

    noised = {"rate": 0.15, "mean_span": 3}
    classes = {
        "prefix_lm": {"max_length": max(1, length * 24 // 32)},
        "span_corruption": noised | within(1, 16),
        "full_span_corruption": noised | within(1, 12),
        "full_span_corruption_deshuffling": noised | within(1, 12),
        "deshuffling": {"rate": 0.5} | within(3, 12),
        "copying": within(3, 12),
        "selective_copying": {"spans": 1} | within(6, 16),
    }
    rest = [(name, 0.1, [(name, name, parameters)]) for name, parameters in classes.items()]
    return [("causal_lm", 0.3, _single("causal_lm")), *rest]


def _small_models(length: int) -> list[_Class]:
    """Return arms that teach a small model to copy within a few million tokens.

    Short texts, which leave little to search, have their own classes of copying and selective copying. A
    schedule can therefore begin with these classes (`SMALL_MODEL_STAGES`). Lengths are absolute, because
    a model can learn to find and repeat text without long rows. The shares leave causal LM about a third of
    the loss. docs/measurements/retrieval_procedures.md has the measurements behind this choice.
    """

    def copying(low: int, high: int) -> _Specification:
        return (f"copying_l{low}_{high}", "copying", {"min_length": low, "max_length": high})

    def selective(low: int, high: int, spans: int) -> list[_Specification]:
        one = {"span_length": (4, 4), "start_delimiter_length": (1, 2), "end_delimiter_length": (1, 2)}
        several = {"span_length": (2, 4), "start_delimiter_length": (1, 2), "end_delimiter_length": (1, 1)}
        # Long texts have few unique single tokens, so shorter delimiters would rule out most texts.
        many = {"span_length": (2, 4), "start_delimiter_length": (2, 3), "end_delimiter_length": (1, 2)}
        lengths = {1: one, 2: several, 3: several, 4: many}[spans]
        bounds = {"min_length": low, "max_length": high, "spans": spans, **lengths}
        name = "selective_copying"
        return [
            (f"{name}_s{spans}_{place}_l{low}_{high}", name, {"query_first": place == "first", **bounds})
            for place in ("first", "last")
        ]

    noised = {"rate": 0.15, "mean_span": 3, "min_length": 16, "max_length": max(16, length // 2)}
    half_shuffled = {"rate": 0.5, "min_length": 8, "max_length": 64}
    short_lengths = ((8, 8), (9, 10), (11, 13), (14, 18))
    short_selective = [arm for low, high in short_lengths for arm in selective(low, high, 1)]
    long_lengths = ((19, 26, 2), (27, 40, 3), (41, 64, 4), (65, 128, 4))
    long_selective = [arm for length_and_spans in long_lengths for arm in selective(*length_and_spans)]
    return [
        ("short_copying", 0.2, [copying(3, 5), copying(6, 8), copying(9, 16)]),
        ("copying", 0.05, [copying(17, 32), copying(33, 64)]),
        ("short_selective_copying", 0.4, short_selective),
        ("selective_copying", 0.2, long_selective),
        ("causal_lm", 0.03, _single("causal_lm")),
        ("prefix_lm", 0.03, _single("prefix_lm")),
        ("span_corruption", 0.03, [("span_corruption", "span_corruption", noised)]),
        ("full_span_corruption", 0.03, [("full_span_corruption", "full_span_corruption", noised)]),
        ("deshuffling", 0.03, [("deshuffling", "deshuffling", half_shuffled)]),
    ]


def _small_models_even(length: int) -> list[_Class]:
    """Return the arms of `small_models` with equal class shares, as a starting point for a bandit."""
    return [(name, 1.0, arms) for name, _, arms in _small_models(length)]


def _quickstart(length: int) -> list[_Class]:
    """Return arms that teach a model of a million parameters to copy within minutes on two cores.

    Most examples copy short texts, which leave little to search. The other texts are short too, so most of
    the loss comes from copying (docs/measurements/retrieval_procedures.md, "What makes a small model
    copy"). Lengths are absolute, as in `small_models`.
    """
    del length
    copying = [
        (f"copying_l{low}_{high}", "copying", {"min_length": low, "max_length": high})
        for low, high in ((3, 8), (9, 16))
    ]
    selective = {
        **{"spans": 1, "span_length": (3, 3), "query_first": True, "min_length": 8, "max_length": 12},
        **{"start_delimiter_length": (1, 2), "end_delimiter_length": (1, 2)},
    }
    noised = {"rate": 0.15, "mean_span": 3, "min_length": 16, "max_length": 64}
    return [
        ("causal_lm", 1.3, [("causal_lm", "causal_lm", {"max_length": 128})]),
        ("copying", 50.0, copying),
        ("prefix_lm", 1.3, [("prefix_lm", "prefix_lm", {"max_length": 64})]),
        ("selective_copying", 46.0, [("selective_copying", "selective_copying", selective)]),
        ("span_corruption", 1.3, [("span_corruption", "span_corruption", noised)]),
    ]


SMALL_MODEL_STAGES = (
    "0: short_copying=30, short_selective_copying=66, causal_lm=1, prefix_lm=1, span_corruption=2; "
    "0.3: short_copying=10, copying=6, short_selective_copying=30, selective_copying=44, causal_lm=2, "
    "prefix_lm=2, span_corruption=3, deshuffling=3; "
    "0.5: short_copying=5, copying=6, short_selective_copying=12, selective_copying=22, causal_lm=24, "
    "prefix_lm=12, span_corruption=8, full_span_corruption=6, deshuffling=5"
)
"""A schedule of the classes of `small_models` for `bandit.policy = "staged"`. It starts with copying."""


MIXTURES: Registry[Callable[[int], list[_Class]]] = Registry(
    "mixture",
    causal_lm=_causal_lm,
    masked_lm=_masked_lm,
    ul2=_ul2,
    bfr=_bfr,
    pt5=_pt5,
    birdie=_birdie,
    tiny=_tiny,
    small_models=_small_models,
    small_models_even=_small_models_even,
    quickstart=_quickstart,
)
