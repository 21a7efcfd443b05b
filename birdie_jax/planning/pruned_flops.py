"""FLOPs of a pruned prefill of any recurrent model: as Simba counts them, and as executed.

The two numbers of a row differ in their rules. Let P be the weights that a token is multiplied with in a
layer, V x d the head's table and n_l the tokens that layer l reads. Then

    paper:    sum_l n_l (2 P + D) + 2 n_{L-1} V d,  n_l = T share_l, not rounded (`simba_flops`);
    executed: sum_l n_l 2 P + 2 k V d,              n_l = the static positions of the compiled program,

D is the channels of Mamba's skip, once. k is the positions that go through the head: none in a prefill that
only fills the cache, one if a token is generated. The executed FLOPs are exactly those of the matrix
products of the compiled program: `counted_flops` reads them from its text. (A compiler does not treat a
matrix of one row, as in Mamba's steps below 17 features, as a product.) Neither counts convolutions, scans,
norms, gates, the scoring of tokens or their gathering.
"""

from collections.abc import Callable, Sequence
from math import prod

import jax

from birdie_jax.models import LanguageModel
from birdie_jax.models.language_model import parameter_shapes
from hlo_analysis import read_step_costs

# Every matrix product uses an array of this name; that of a short convolution is elementwise.
_MATRIX, _CONVOLUTION = "kernel", "convolution"
# Mamba's skip of its input past the recurrence.
_SKIP = "D"


def layer_products(model: LanguageModel) -> int:
    """Return the matrix weights that a token is multiplied with in a layer."""
    return _sizes(model, lambda names: names[-1] == _MATRIX and _CONVOLUTION not in names)


def paper_flops(model: LanguageModel, shares: Sequence[float], tokens: int) -> float:
    """Return the FLOPs of a row in the unit of Simba.

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
    """Return the FLOPs of the matrix products of a row in a compiled pruned prefill.

    Args:
        model: a model without attention.
        lengths: the static positions of a row that each layer reads, from
            `pruning.pruned_prefill.layer_lengths`.
        head_positions: the positions that go through the head.
    """
    head = head_positions * model.vocab_size * model.config.features
    return 2.0 * (sum(lengths) * layer_products(model) + head)


def counted_flops(compiled: jax.stages.Compiled) -> float:
    """Return the FLOPs of the matrix products of a compiled program of one device, for all its rows.

    Raises:
        RuntimeError: the compiler returns no text of the program.
    """
    text = compiled.as_text()
    if text is None:
        raise RuntimeError("the compiler gives no text of the program that it compiled; expected HLO text")
    return read_step_costs(text, {}).flops.dot


def _sizes(model: LanguageModel, counts: Callable[[list[str]], bool]) -> int:
    """Return the parameters per layer, over those whose path of names `counts` accepts."""
    blocks = parameter_shapes(model)["blocks"]
    total = sum(
        prod(leaf.shape)
        for path, leaf in jax.tree_util.tree_leaves_with_path(blocks)
        if counts([part.key for part in path])
    )
    return total // model.config.layers
