"""FLOPs of a pruned prefill of a recurrent model: by Simba's count, and as executed.

The two counts differ in their rules. Let P be the number of weights that multiply a token in a layer, V x d
the head's table and n_l the number of tokens that layer l reads. Then

    paper:    sum_l n_l (2 P + D) + 2 n_{L-1} V d,  n_l = T share_l, not rounded (`simba_flops`);
    executed: sum_l n_l 2 P + 2 k V d,              n_l = the static positions of the compiled program,

D is the number of channels of Mamba's skip. k is the number of positions that the head reads: 0 in a
prefill that only fills the cache, 1 if it generates a token. The executed FLOPs equal those of the matrix
products in the compiled program, which `counted_flops` reads from its text. (A compiler does not treat a
matrix of one row, as in Mamba's steps below 17 features, as a product.) Neither count includes
convolutions, scans, norms, gates, or the scoring and gathering of tokens.
"""

from collections.abc import Callable, Sequence
from math import prod

import jax

from birdie_jax.models import LanguageModel
from birdie_jax.models.language_model import parameter_shapes
from hlo_analysis import read_step_costs

# Every matrix product uses an array of the first name. In a short convolution it is elementwise.
_MATRIX, _CONVOLUTION = "kernel", "convolution"
# Mamba's skip of its input past the recurrence.
_SKIP = "D"


def layer_products(model: LanguageModel) -> int:
    """Return the number of matrix weights that multiply a token in a layer."""
    return _sizes(model, lambda names: names[-1] == _MATRIX and _CONVOLUTION not in names)


def paper_flops(model: LanguageModel, shares: Sequence[float], tokens: int) -> float:
    """Return the FLOPs of a row by Simba's count.

    Args:
        model: the language model.
        shares: the share of the row's tokens that each layer reads.
        tokens: the number of the row's tokens.
    """
    read = [tokens * share for share in shares]
    skips = _sizes(model, lambda names: names[-1] == _SKIP)
    head = read[-1] * model.vocab_size * model.config.features
    return 2.0 * (sum(read) * layer_products(model) + head) + sum(read) * skips


def executed_flops(model: LanguageModel, lengths: Sequence[int], head_positions: int = 0) -> float:
    """Return the FLOPs of a row's matrix products in a compiled pruned prefill.

    Args:
        model: a model without attention.
        lengths: the static number of positions of a row that each layer reads, from
            `pruning.pruned_prefill.layer_lengths`.
        head_positions: the number of positions that the head reads.
    """
    head = head_positions * model.vocab_size * model.config.features
    return 2.0 * (sum(lengths) * layer_products(model) + head)


def counted_flops(compiled: jax.stages.Compiled) -> float:
    """Return the FLOPs of all matrix products in a compiled program of one device.

    Raises:
        RuntimeError: the compiler returns no text of the program.
    """
    text = compiled.as_text()
    if text is None:
        raise RuntimeError("the compiler gives no text of the program that it compiled; expected HLO text")
    return read_step_costs(text, {}).flops.dot


def _sizes(model: LanguageModel, counts: Callable[[list[str]], bool]) -> int:
    """Return the number of parameters per layer; `counts` selects them by the names on their path."""
    blocks = parameter_shapes(model)["blocks"]
    total = sum(
        prod(leaf.shape)
        for path, leaf in jax.tree_util.tree_leaves_with_path(blocks)
        if counts([part.key for part in path])
    )
    return total // model.config.layers
