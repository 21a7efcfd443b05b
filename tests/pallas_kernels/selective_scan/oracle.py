"""The selective scan by its definition and the chain rule, step by step in float64, and inputs for it."""

import jax.numpy as jnp
import numpy as np

from pallas_kernels.selective_scan import SelectiveScanInputs


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def scan_inputs(shape=(2, 11, 6), states=3, dtype=np.float32, seed=0, *, direction="both", **left_out):
    """Return inputs with resets at a fifth of the tokens, and cotangents of y and of the last state.

    Args:
        shape: batch, length, channels.
        states: N.
        dtype: the dtype of the sequences.
        seed: the seed of the random numbers.
        direction: the direction; "both" has two arrays of resets.
        left_out: fields to set to None.
    """
    random = np.random.default_rng(seed)
    batch, length, channels = shape
    count = 2 if direction == "both" else 1
    draw = lambda *shape: random.normal(size=shape)  # noqa: E731
    values = {
        "u": draw(*shape),
        "dt": draw(*shape) if "dt_bias" not in left_out else np.abs(draw(*shape)),
        "B": draw(batch, length, states),
        "C": draw(batch, length, states),
        "z": draw(*shape),
    }
    arrays = {name: jnp.asarray(value, dtype) for name, value in values.items()}
    vectors = {
        # Some channels forget quickly, and some slowly.
        "A": -np.exp(1.5 * draw(states, channels)),
        "D": draw(channels),
        "dt_bias": draw(channels) - 1,
        "h0": draw(batch, states, channels),
    }
    arrays |= {name: jnp.asarray(value, jnp.float32) for name, value in vectors.items()}
    resets = tuple(jnp.asarray(random.uniform(size=(batch, length)) < 1 / 5) for _ in range(count))
    inputs = SelectiveScanInputs(resets=resets, **arrays)._replace(**left_out)
    dy = jnp.asarray(draw(*shape), dtype)
    return inputs, dy, jnp.asarray(draw(batch, states, channels), jnp.float32)


def scan_oracle(inputs, dy, dlast, direction):
    """Return y, the last state, and the cotangents of the inputs as `SelectiveScanInputs`."""
    half = inputs.u.shape[-1] // 2
    parts = {
        "forward": [(slice(None), 0, False)],
        "reverse": [(slice(None), 0, True)],
        "both": [(slice(0, half), 0, False), (slice(half, None), 1, True)],
    }[direction]
    found = []
    for channels, which, reverse in parts:
        reset = None if inputs.resets is None else np.asarray(inputs.resets[which])
        given = {
            name: None if array is None else np.asarray(array, np.float64)
            for name, array in inputs._asdict().items()
            if name != "resets"
        }
        part = {
            name: array if array is None or name in ("B", "C") else array[..., channels]
            for name, array in given.items()
        }
        cotangents = (np.asarray(array, np.float64)[..., channels] for array in (dy, dlast))
        found.append(_one_direction(part, reset, *cotangents, reverse=reverse))
    results = {}
    for name in found[0]:
        values = [part[name] for part in found]
        if name in ("B", "C"):
            results[name] = sum(values)
        else:
            results[name] = None if values[0] is None else np.concatenate(values, axis=-1)
    return results.pop("y"), results.pop("last"), SelectiveScanInputs(resets=None, **results)


def _one_direction(given, reset, dy, dlast, *, reverse):
    u, A, B, C, D, z, bias = (given[name] for name in ("u", "A", "B", "C", "D", "z", "dt_bias"))
    length = u.shape[1]
    raw = given["dt"] if bias is None else given["dt"] + bias
    dt = raw if bias is None else np.logaddexp(0, raw)
    order = range(length)[::-1] if reverse else range(length)
    decay = np.exp(dt[:, :, None] * A)
    if reset is not None:
        decay[reset] = 0
    before, h = {}, {}
    state = given["h0"]
    for t in order:
        before[t] = state
        state = h[t] = decay[:, t] * state + (dt * u)[:, t, None] * B[:, t, :, None]
    scanned = np.stack([np.einsum("bn,bne->be", C[:, t], h[t]) for t in range(length)], axis=1)
    ungated = scanned + (0 if D is None else D * u)
    gate = np.ones_like(u) if z is None else z * sigmoid(z)
    found = {"y": ungated * gate, "last": state}
    found["z"] = None if z is None else dy * ungated * sigmoid(z) * (1 + z * (1 - sigmoid(z)))
    d_ungated = dy * gate
    found["D"] = None if D is None else (d_ungated * u).sum((0, 1))
    du = d_ungated * (0 if D is None else D)
    ddt, dA, dB, dC = np.zeros_like(u), np.zeros_like(A), np.zeros_like(B), np.zeros_like(C)
    carried = dlast
    for t in reversed(order):
        g = carried + d_ungated[:, t, None] * C[:, t, :, None]
        dC[:, t] = np.einsum("bne,be->bn", h[t], d_ungated[:, t])
        dB[:, t] = np.einsum("bne,be->bn", g, (dt * u)[:, t])
        g_B = np.einsum("bne,bn->be", g, B[:, t])
        dlog = g * decay[:, t] * before[t]
        du[:, t] += dt[:, t] * g_B
        ddt[:, t] = u[:, t] * g_B + (dlog * A).sum(1)
        dA += (dlog * dt[:, t, None]).sum(0)
        carried = decay[:, t] * g
    found |= {"u": du, "A": dA, "B": dB, "C": dC, "h0": carried}
    found["dt"] = ddt if bias is None else ddt * sigmoid(raw)
    found["dt_bias"] = None if bias is None else found["dt"].sum((0, 1))
    return found
