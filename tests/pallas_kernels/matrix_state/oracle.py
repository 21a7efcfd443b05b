"""Recurrences with a matrix per head by their definitions, token by token in float64, and their inputs."""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.matrix_state.sequences import HeadSequences

# A complex step subtracts nothing, so derivatives are exact to the last digits.
STEP = 1e-30


def draw(shape, *, groups=None, d_k=3, by_channel=False, added=False, seed=0, direction="both", resets=0.2):
    """Return the arguments of a recurrence, its first state, and cotangents of both results, in float64.

    Args:
        shape: batch, length, heads, d_v.
        groups: the number of heads of q and k; None for as many as heads.
        d_k: the number of features of q and k.
        by_channel: whether each channel of the keys has a decay.
        added: whether the state adds values without the delta rule, and beta is None.
        seed: the seed of the random numbers.
        direction: the direction; "both" has two arrays of resets.
        resets: the share of tokens with a reset; without any, there are no arrays of resets.
    """
    random = np.random.default_rng(seed)
    batch, length, heads, d_v = shape
    groups = groups or heads
    q, k = random.normal(size=(2, batch, length, groups, d_k))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    # Some heads forget quickly, and some slowly.
    g = -np.exp(2 * random.normal(size=(batch, length, heads, *(d_k,) * by_channel)) - 2)
    # A decay of 1 has the log decay 0, the limit at which positive exponents are clipped.
    g[random.uniform(size=g.shape) < 1 / 8] = 0
    beta = None if added else random.uniform(0, 2, (batch, length, heads))
    count = 2 if direction == "both" else 1
    flags = tuple(random.uniform(size=(count, batch, length)) < resets) if resets else None
    v, do = random.normal(size=(2, *shape))
    state, dlast = random.normal(size=(2, batch, heads, d_k, d_v))
    return HeadSequences(q, k, v, g, beta, flags), state, do, dlast


def scan(sequences, state, direction):
    """Return the output of each token, and the last state. Arrays may have one more leading axis."""
    q, k, v, g, beta, resets = sequences
    heads = v.shape[-2]
    o, last = [], []
    for head in range(heads):
        reverse = direction == "reverse" or (direction == "both" and head >= heads // 2)
        reset = None if resets is None else resets[1 if direction == "both" and reverse else 0]
        group = head * q.shape[-2] // heads
        S, read = state[..., head, :, :], {}
        length = v.shape[-3]
        for t in reversed(range(length)) if reverse else range(length):
            decay = np.exp(g[..., t, head, :] if g.ndim == q.ndim else g[..., t, head, None])[..., None]
            if reset is not None:
                decay = np.where(reset[:, t, None, None], 0, decay)
            S = decay * S
            key, u = k[..., t, group, :], v[..., t, head, :]
            if beta is not None:
                u = beta[..., t, head, None] * (u - np.einsum("...k,...kv->...v", key, S))
            S = S + key[..., :, None] * u[..., None, :]
            read[t] = np.einsum("...k,...kv->...v", q[..., t, group, :], S)
        o.append(np.stack(np.broadcast_arrays(*(read[t] for t in range(length))), axis=-2))
        last.append(S)
    return np.stack(np.broadcast_arrays(*o), axis=-2), np.stack(np.broadcast_arrays(*last), axis=-3)


def complex_step(function, arguments):
    """Return the gradient of a scalar function with respect to each of its arrays, by complex steps.

    `function` gets arrays with one more leading axis. Along it, each entry has a step in another element of
    one of the arrays. It returns one number per entry.
    """
    found = {}
    spread = {name: None if array is None else array[None] for name, array in arguments.items()}
    for name, array in arguments.items():
        if array is None:
            continue
        steps = 1j * STEP * np.eye(array.size).reshape(array.size, *array.shape)
        found[name] = (function({**spread, name: array + steps}).imag / STEP).reshape(array.shape)
    return found


def compare_along(function, arguments, found, tolerance):
    """Compare cotangents with the derivative of a scalar function along a random direction of each array.

    Use it where `complex_step` would take too long. `function` and `arguments` are as there.
    """
    random = np.random.default_rng(1)
    given = {name: array for name, array in arguments.items() if array is not None}
    directions = {name: random.normal(size=array.shape) for name, array in given.items()}
    moved = {
        name: np.stack([array + 1j * STEP * directions[name] * (name == other) for other in given])
        for name, array in given.items()
    }
    derivatives = function(arguments | moved).imag / STEP
    for name, derivative in zip(given, derivatives, strict=True):
        cotangent = np.asarray(found[name], np.float64)
        # The derivative is about as large as the norm, however many of its terms cancel.
        error = abs(np.vdot(cotangent, directions[name]) - derivative)
        assert error <= tolerance * np.linalg.norm(cotangent), (name, error)


def gradients(sequences, state, do, dlast, direction):
    """Return the cotangents of the arguments by name; the first state has the name `state`."""
    total = total_of(sequences, do, dlast, direction)
    return complex_step(total, by_name(sequences, state))


def by_name(sequences, state):
    """Return the arguments of `total_of`'s function."""
    arguments = {name: array for name, array in sequences._asdict().items() if name != "resets"}
    return arguments | {"state": state}


def total_of(sequences, do, dlast, direction):
    """Return the function of the arguments by name, `state` too, whose gradient is their cotangents."""

    def total(arguments):
        state = arguments["state"]
        rest = {name: array for name, array in arguments.items() if name != "state"}
        o, last = scan(HeadSequences(resets=sequences.resets, **rest), state, direction)
        return np.sum(o * do, axis=(-4, -3, -2, -1)) + np.sum(last * dlast, axis=(-4, -3, -2, -1))

    return total


def to_arrays(tree, dtype=jnp.float32):
    """Convert the numbers of a tree to a dtype; flags stay boolean."""
    return jax.tree.map(lambda x: jnp.asarray(x, x.dtype if x.dtype == bool else dtype), tree)
