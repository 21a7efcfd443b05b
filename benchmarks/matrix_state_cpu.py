"""gated_delta_rule and ssd on a CPU, compared with the matrix products that they require.

    taskset -c 0 python -m benchmarks.matrix_state_cpu --transformers=PYTHON

The script prints milliseconds of a forward pass, and of the gradients of all arguments including the
forward pass, at [2, 2048, 4, 128, 256] (batch, length, heads, d_k, d_v) in float32. Each time is the best
of seven calls. Temporary memory is the memory of the compiled program.

"products" are the products of a chunk alone, on arrays of the same shapes, each repeated as often as a
pass needs it. One count is for the forward pass, the other for both passes. The backward pass keeps only
the arguments, so it must repeat some products of the forward pass; these count once.

--transformers is a Python with torch and transformers. Their functions run on the same shapes with the
same number of threads.
"""

import json
import os
import subprocess
import time

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from pallas_kernels.gated_delta_rule import gated_delta_rule
from pallas_kernels.ssd import ssd

SHAPE = (2, 2048, 4, 128, 256)
CALLS = 7

_TRANSFORMERS = flags.DEFINE_string("transformers", "", "A Python that has torch and transformers.")

# The products of a chunk, by the axes of their operands (c and d: tokens, k: keys, v: values), and their
# counts.
FORWARD = {"ck,dk->cd": 2, "cd,dv->cv": 2, "ck,kv->cv": 2, "ck,cv->kv": 1}
BACKWARD = {
    "ck,dk->cd": 2,
    "cd,dv->cv": 1,
    "ck,kv->cv": 2,
    "ck,cv->kv": 3,
    "cd,cv->dv": 2,
    "cv,dv->cd": 2,
    "cv,kv->ck": 3,
    "cd,dk->ck": 4,
}
# Without beta there is no triangular system.
SSD_FORWARD = {"ck,dk->cd": 1, "cd,dv->cv": 1, "ck,kv->cv": 1, "ck,cv->kv": 1}
SSD_BACKWARD = {
    "ck,dk->cd": 1,
    "ck,kv->cv": 1,
    "ck,cv->kv": 2,
    "cd,cv->dv": 1,
    "cv,dv->cd": 1,
    "cv,kv->ck": 2,
    "cd,dk->ck": 2,
}


def best(function, *arguments):
    """Return the best milliseconds of a compiled function, and the megabytes of its temporary memory."""
    compiled = jax.jit(function).lower(*arguments).compile()
    jax.block_until_ready(compiled(*arguments))
    times = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        times.append(time.perf_counter() - begin)
    return 1e3 * min(times), compiled.memory_analysis().temp_size_in_bytes / 1e6


def products(counts, chunk, draw):
    """Return the summed time of products: each in a loop over all chunks, times its count."""
    batch, length, heads, d_k, d_v = SHAPE
    sizes = {"c": chunk, "d": chunk, "k": d_k, "v": d_v}
    total = 0.0
    for equation, count in counts.items():
        left, right, result = equation.replace("->", ",").split(",")
        operands = [
            draw(length // chunk, batch * heads, *(sizes[letter] for letter in operand))
            for operand in (left, right)
        ]

        def loop(*operands, equation=f"b{left},b{right}->b{result}"):
            return jax.lax.scan(lambda _, now: (None, jnp.einsum(equation, *now)), None, operands)[1]

        total += count * best(loop, *operands)[0]
    return total


def of_transformers(python):
    """Return milliseconds of transformers' functions by name: forward, and with the gradient."""
    program = f"""
import json, time, torch
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan
torch.set_num_threads({len(os.sched_getaffinity(0))})
B, T, H, K, V = {SHAPE}
draw = lambda *shape: torch.randn(*shape, requires_grad=True)
q, k, v = draw(B, T, H, K), draw(B, T, H, K), draw(B, T, H, V)
g = (-torch.rand(B, T, H)).requires_grad_()
beta = torch.rand(B, T, H).requires_grad_()
A = (-torch.rand(H)).requires_grad_()
def delta():
    return torch_chunk_gated_delta_rule(q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True)[0]
def scan():
    return mamba2_chunk_scan(v, beta, A, k, q, chunk_size=256)
found = {{}}
for name, run in (("gated_delta_rule", delta), ("ssd", scan)):
    times = ([], [])
    for _ in range({CALLS}):
        begin = time.perf_counter()
        with torch.no_grad():
            run()
        times[0].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        out = run()
        out = out[0] if isinstance(out, tuple) else out
        out.square().sum().backward()
        times[1].append(time.perf_counter() - begin)
    found[name] = [1e3 * min(each) for each in times]
print(json.dumps(found))
"""
    run = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def main(argv):
    del argv
    random = np.random.default_rng(0)

    def draw(*shape):
        return jnp.asarray(random.normal(size=shape), jnp.float32)

    batch, length, heads, d_k, d_v = SHAPE
    q, k, v = (
        draw(batch, length, heads, d_k),
        draw(batch, length, heads, d_k),
        draw(batch, length, heads, d_v),
    )
    k /= jnp.linalg.norm(k, axis=-1, keepdims=True)
    g = -jnp.asarray(random.uniform(size=(batch, length, heads)), jnp.float32)
    by_channel = -jnp.asarray(random.uniform(size=(batch, length, heads, d_k)), jnp.float32)
    beta = jnp.asarray(random.uniform(size=(batch, length, heads)), jnp.float32)
    A = -jnp.asarray(random.uniform(size=heads), jnp.float32)
    cases = {
        "gated_delta_rule": (gated_delta_rule, (q, k, v, g, beta), 64, (FORWARD, BACKWARD)),
        "gated_delta_rule, decay by channel": (
            *(gated_delta_rule, (q, k, v, by_channel, beta), 64, (FORWARD, BACKWARD)),
        ),
        "ssd": (ssd, (v, beta, A, k, q), 128, (SSD_FORWARD, SSD_BACKWARD)),
    }
    peers = of_transformers(_TRANSFORMERS.value) if _TRANSFORMERS.value else {}
    print("| operation | direction | products | forward | with gradient | MB | transformers |")
    print("|---|---|---|---|---|---|---|")
    for name, (operation, arguments, chunk, (forward, backward)) in cases.items():
        least = products(forward, chunk, draw), products(backward, chunk, draw)
        for direction in ("forward", "both"):

            def read(*arguments, direction=direction, operation=operation):
                return operation(*arguments, direction=direction)[0]

            def loss(*arguments, read=read):
                return jnp.sum(jnp.square(read(*arguments)))

            once, _ = best(read, *arguments)
            both, memory = best(jax.value_and_grad(loss, tuple(range(len(arguments)))), *arguments)
            peer = ", ".join(f"{value:.0f}" for value in peers.get(name, ()))
            print(
                f"| {name} | {direction} | {least[0]:.0f}, {sum(least):.0f} | {once:.0f} | {both:.0f} | "
                f"{memory:.0f} | {peer} |",
                flush=True,
            )


if __name__ == "__main__":
    app.run(main)
