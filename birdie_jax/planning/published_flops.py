"""The FLOPs that "Pretraining Without Attention" counts for its two models, by which its table 8 is had.

The paper says that they are of a forward and a backward pass; its digits are those of a forward pass of one
row, without embeddings and head, an FFT of 2 L tokens counted as 5 times 2 L log2(2 L).
"""

from math import log2


def bigs_forward_flops(layers: int, features: int, length: int) -> float:
    """Return the FLOPs of a row through BiGS: its maps, and a convolution by FFT in each direction.

    Args:
        layers: the number of blocks.
        features: the width D of the residual stream; the inner width is 3 D.
        length: the tokens of the row.
    """
    maps = 13.0 * features**2 * 2 * length
    convolutions = 2 * features * 15 * length * log2(2 * length)
    return layers * (maps + convolutions)


def bert_forward_flops(layers: int, features: int, length: int) -> float:
    """Return the FLOPs of a row through BERT: its maps, and the two products of attention.

    Args:
        layers: the number of blocks.
        features: the width D of the residual stream; the inner width of the MLP is 4 D.
        length: the tokens of the row.
    """
    return layers * (12.0 * features**2 * 2 * length + 4.0 * length**2 * features)
