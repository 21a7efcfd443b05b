"""The FLOPs of BiGS and BERT by length, and the paper's table 8: `python -m benchmarks.published_flops`.

The published figures are from "Pretraining Without Attention", appendix A.4.
`birdie_jax.planning.simba_flops` documents the operations that they count.
"""

from birdie_jax.planning.simba_flops import bert_forward_flops, bigs_forward_flops

PUBLISHED = {
    128: ("8.1e10", "7.9e10"),
    512: ("3.2e11", "3.4e11"),
    1024: ("6.5e11", "7.2e11"),
    4096: ("2.6e12", "4.1e12"),
}
"""The FLOPs of BiGS and of BERT as published, by the tokens of a row."""

_FEATURES = 1024
_GATED_LAYERS, _STACKED_LAYERS = 23, 24


def table() -> str:
    """Return a table of the counted and published figures of both models, and their ratio."""
    rows = []
    for length, (bigs, bert) in PUBLISHED.items():
        gated = bigs_forward_flops(_GATED_LAYERS, _FEATURES, length)
        stacked = bert_forward_flops(_STACKED_LAYERS, _FEATURES, length)
        counts = [_digits(gated), bigs, _digits(stacked), bert]
        rows.append([f"{length:,}", *counts, f"{gated / stacked:.2f}"])
    head = ["tokens", "BiGS", "published", "BERT", "published", "BiGS / BERT"]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))


def _digits(flops: float) -> str:
    """Format a count with two digits, as in the paper."""
    return f"{flops:.1e}".replace("e+", "e")


if __name__ == "__main__":
    print(table())
