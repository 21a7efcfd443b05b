"""The partition of a call of the kernels in `tpu` into grid steps."""

from typing import Any, NamedTuple

from pallas_kernels.linear_scan.padding import round_up
from pallas_kernels.matrix_state.sequences import HeadSequences

# The limit for a grid step of the gradient: the states of its chunks, and double-buffered blocks. A TPU v4
# has 16 MiB.
MAX_BYTES = 12 << 20
MAX_CHUNKS = 16
# The limit for the states of heads that are read block by block.
MAX_CARRIED_BYTES = 2 << 20
# The tokens of a chunk, as many as a matrix unit has rows: with fewer, products of keys and values, summed
# over the tokens, leave a part of the unit idle.
CHUNK = 128
# For narrower heads, most of a kernel's tiles would be padding.
LEAST_FEATURES = 64
# The limit for the state of a head, in the dtype of the values: with a larger one, even the gradient of a
# single chunk may not fit.
MAX_HEAD_BYTES = 256 << 10
LANES = 128


class HeadGrid(NamedTuple):
    """The partition of a call into grid steps, (row, set of heads, block of tokens, step of the set).

    Attributes:
        chunk: the number of tokens of a chunk.
        chunks: the number of chunks of a block.
        blocks: the number of blocks of a sequence.
        heads: the number of heads of the values.
        shares: the number of heads that share a head of keys.
        side: the number of heads of a grid step, with their features side by side on the lanes.
        units: the number of parts of a grid step's heads that are computed one after the other. Heads that
            share keys and have no beta are one unit.
        steps: the number of grid steps of a set of heads. Heads that share keys and a direction are a set,
            so a block of keys is read once for all of them, if the states of a set fit.
        d_k: the number of features of a key.
        d_v: the number of features of a value.
        direction: "forward", "reverse" or "both".
    """

    chunk: int
    chunks: int
    blocks: int
    heads: int
    shares: int
    side: int
    units: int
    steps: int
    d_k: int
    d_v: int
    direction: str

    @property
    def sets(self) -> int:
        """The number of sets of heads."""
        return self.heads // (self.side * self.steps)

    @property
    def sets_have_keys(self) -> bool:
        """Whether no head outside a set has its keys."""
        return self.shares == 1 or self.sets * self.shares == self.heads

    @property
    def key_heads(self) -> int:
        """The number of heads of keys of a grid step."""
        return self.side if self.shares == 1 else 1

    @property
    def width(self) -> int:
        """The number of features of the values of a unit."""
        return self.d_v * self.side // self.units

    def is_reverse(self, of_set: Any) -> Any:
        """Return whether a set of heads is read in reverse."""
        if self.direction == "both":
            return of_set >= self.sets // 2
        return self.direction == "reverse"


def suits_features(sequences: HeadSequences) -> bool:
    """Return whether keys and values are wide enough for the tiles, and the state of a head fits."""
    widths = sequences.k.shape[-1], sequences.v.shape[-1]
    # Features are padded to whole lanes, or two heads of 64 are side by side.
    d_k, d_v = (round_up(width, LANES) for width in widths)
    fits = d_k * d_v * sequences.v.dtype.itemsize <= MAX_HEAD_BYTES
    return fits and min(widths) >= LEAST_FEATURES


def heads_side_by_side(sequences: HeadSequences, direction: str) -> int:
    """Return how many heads a grid step reads: two if one has too few features for the 128 lanes."""
    (groups, d_k), (heads, d_v) = sequences.k.shape[2:], sequences.v.shape[2:]
    shares, ways = heads // groups, 2 if direction == "both" else 1
    is_narrow = LANES in (2 * d_v, 2 * d_k if shares == 1 else 0)
    return 2 if is_narrow and heads % (2 * ways) == 0 and (shares == 1 or shares % 2 == 0) else 1


def fits_lanes(sequences: HeadSequences, direction: str) -> bool:
    """Return whether the features of a grid step fill whole lanes, or are all of an array's features."""
    (groups, d_k), (heads, d_v) = sequences.k.shape[2:], sequences.v.shape[2:]
    side = heads_side_by_side(sequences, direction)
    of_keys = side if groups == heads else 1
    return all(
        count == step or step * width % LANES == 0
        for count, step, width in ((groups, of_keys, d_k), (heads, side, d_v))
    )


def make_grid(sequences: HeadSequences, direction: str, chunk: int) -> HeadGrid:
    """Return the grid of sequences whose length is a multiple of `chunk`."""
    (length, heads, d_v), (groups, d_k) = sequences.v.shape[1:], sequences.k.shape[2:]
    side, shares = heads_side_by_side(sequences, direction), heads // groups
    size = sequences.v.dtype.itemsize
    of_set = heads // max(groups, 2 if direction == "both" else 1)
    steps = of_set // side if shares > 1 and 4 * of_set * d_k * d_v <= MAX_CARRIED_BYTES else 1
    units = side if shares == 1 or sequences.beta is not None else 1
    # Cotangents of shared keys are summed in float32, in a block without a double and perhaps in memory.
    of_keys = 2 * (size + 4) + 4 if shares > 1 else 4 * side * size
    of_chunk = 4 * side * d_k * d_v + 2 * chunk * (of_keys * d_k + 3 * side * size * d_v)
    most, total = min(MAX_CHUNKS, max(1, MAX_BYTES // of_chunk)), length // chunk
    chunks = max(n for n in range(1, most + 1) if total % n == 0)
    return HeadGrid(
        *(chunk, chunks, total // chunks, heads, shares, side, units, steps), d_k, d_v, direction
    )
