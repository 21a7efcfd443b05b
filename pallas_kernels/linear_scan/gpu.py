"""linear_scan for NVIDIA GPUs from Hopper on, in Mosaic GPU: three and five memory accesses per element.

A block of 128 threads scans some channels of one batch row over the whole sequence. Tiles of time steps
stream through shared memory: the tensor memory accelerator copies several tiles in and the results out
while the threads read one tile.

For a large batch, each thread scans one channel. For a small batch and long sequences, this gives too few
blocks. Then a block is narrower, down to 16 channels, and its threads cut each tile into up to 8 time
chunks that they read in parallel. A first pass over the tile in shared memory computes the effect of each
chunk on the state that enters it, h -> P h + H (Blelloch 1990, section 1.4). The threads exchange these
transfers, and a second pass computes every h from the entering state. So chunks cost arithmetic, but no
memory access. `gpu_pass.choose_chunks` is the rule: [8, 2048, 2048] gives 128 blocks of 1 chunk, and
[1, 16384, 2048] gives 128 blocks of 8 chunks.

Alternatives:
- One block per chunk, with a first launch that computes P and H. This reads a and x twice: five accesses
  instead of three, so at most 60 % of the speed of a copy. The cache serves the second read only for data
  that fits in it (50 MB, out of 134 MB at [1, 16384, 2048] in bfloat16).
- Blocks that wait for the states of other blocks. This keeps three accesses, but needs flags in global
  memory or the barriers of a cluster. The interpreter of JAX 0.10 has neither, so the order of the blocks
  could not be tested without a GPU.

The gradient is the same pass in the other direction, g[t] = dh[t] + a[t+1] g[t+1], dx = g,
da[t] = g[t] h[t-1] (Martin and Cundy 2018, section 2.2); it carries a[t] g[t]. It also reads one row of h
of the neighbouring tile. The reset flags of 32 steps are the bits of one word; they stream like operands.
"""

from jaxtyping import Array, Bool, Float

from pallas_kernels.linear_scan.gpu_call import call_kernel
from pallas_kernels.linear_scan.gpu_pass import THREADS, WORD, Pass, choose_chunks, make_grid, parts_of
from pallas_kernels.linear_scan.padding import crop_channels, pad_channels, pad_length


def suits(shape: tuple[int, ...], direction: str) -> bool:
    """Return whether a call needs no padding: whole words in time, and whole blocks of channels."""
    _, length, channels = shape
    chunks = choose_chunks(shape, direction)
    return length % (chunks * WORD) == 0 and channels % (parts_of(direction) * THREADS // chunks) == 0


def forward(
    a: Float[Array, "batch length channels"],
    x: Float[Array, "batch length channels"],
    h0: Float[Array, "batch channels"],
    *,
    resets: tuple[Bool[Array, "batch length"], ...] | None,
    direction: str,
    chunks: int | None = None,
    interpret: object = None,
) -> Float[Array, "batch length channels"]:
    """Return h in the type of `x`.

    Args:
        a: the decays, float32 or bfloat16. Unsuitable sizes are padded, which copies every operand.
        x: the addends, float32 or bfloat16.
        h0: the state before the first step in reading order.
        resets: for each direction, the steps where the decay counts as zero; or None.
        direction: "forward", "reverse" or "both".
        chunks: the number of time chunks that a block reads in parallel, 1, 2, 4 or 8; None for
            `choose_chunks`.
        interpret: the parameters of Mosaic GPU's interpreter, to run on any platform, slowly.
    """
    _, length, channels = a.shape
    parts, chunks = parts_of(direction), chunks or choose_chunks(a.shape, direction)
    # Padding with a = 1 and x = 0 leaves the state unchanged, so it can come first in reading order.
    a, x = _padded(a, parts, chunks, 1.0), _padded(x, parts, chunks, 0.0)
    h0 = pad_channels(h0, parts, THREADS // chunks)
    grid = make_grid(a, x, direction, streams=2, chunks=chunks, interpret=interpret)
    (h,) = call_kernel(grid, _FORWARD, streams=(a, x), h0=h0, resets=resets, results=(x.dtype,))
    return crop_channels(h[:, :length], parts, channels)


def backward(
    a: Float[Array, "batch length channels"],
    h: Float[Array, "batch length channels"],
    h0: Float[Array, "batch channels"],
    dh: Float[Array, "batch length channels"],
    *,
    resets: tuple[Bool[Array, "batch length"], ...] | None,
    direction: str,
    chunks: int | None = None,
    interpret: object = None,
) -> tuple[
    Float[Array, "batch length channels"],
    Float[Array, "batch length channels"],
    Float[Array, "batch channels"],
]:
    """Return (da, dx, dh0) for the cotangent `dh` of h; the other arguments are as for `forward`."""
    _, length, channels = a.shape
    parts, chunks = parts_of(direction), chunks or choose_chunks(a.shape, direction)
    a, dh = _padded(a, parts, chunks, 1.0), _padded(dh, parts, chunks, 0.0)
    h0 = pad_channels(h0, parts, THREADS // chunks)
    h = _padded(h, parts, chunks, h0[:, None])
    grid = make_grid(a, h, direction, streams=3, chunks=chunks, interpret=interpret)
    results = (a.dtype, h.dtype)
    da, dx, dh0 = call_kernel(grid, _BACKWARD, streams=(a, dh, h), h0=h0, resets=resets, results=results)
    return (
        crop_channels(da[:, :length], parts, channels),
        crop_channels(dx[:, :length], parts, channels),
        crop_channels(dh0, parts, channels),
    )


def _padded(values, parts, chunks, fill):
    return pad_length(pad_channels(values, parts, THREADS // chunks), chunks * WORD, fill)


_FORWARD = Pass(
    reverse_time=False,
    advance=lambda state, decay, new: decay * state + new,
    results=lambda state, after, new, h_prev, clear: (after,),
)
_BACKWARD = Pass(
    reverse_time=True,
    advance=lambda state, decay, new: decay * (new + state),
    results=lambda state, after, new, h_prev, clear: (clear((new + state) * h_prev), new + state),
)
