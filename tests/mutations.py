"""Shows that the tests catch faults: puts one deliberate fault after another into a copy, and runs tests.

    python -m tests.mutations              # every fault: about 40 minutes of one core
    python -m tests.mutations text models  # those of some rooms

For each fault the fast tests of the table run first, until one fails; if none does, all of them. The
command prints a row of a Markdown table for each fault, and ends with status 1 if no test caught one, or
if a test that caught one fails without a fault too.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[1]
CODE = ("birdie_jax", "pallas_kernels", "hlo_analysis", "launch", "setup.py")
_NO_TESTS = 5


class Fault(NamedTuple):
    """A deliberate fault.

    Attributes:
        room: the room that it tests.
        what: a description of the fault.
        code: a text that occurs once in the code.
        fault: the replacement.
        tests: files and folders below tests/, joined by spaces.
    """

    room: str
    what: str
    code: str
    fault: str
    tests: str


FAULTS = (
    Fault(
        "text",
        "copies of a document are on both sides of the validation split",
        "hashlib.blake2b(text.encode(), digest_size=8)",
        "hashlib.blake2b((text + str(id(text))).encode(), digest_size=8)",
        "text/test_token_shards.py text/test_preparation.py",
    ),
    Fault(
        "text",
        "an error names the line before the damaged one",
        'place = f"line {number + 1}"',
        'place = f"line {number}"',
        "text/test_sources.py",
    ),
    Fault(
        "objectives",
        "noise spans can be empty",
        "edges[1:-1] = cuts + 1",
        "edges[1:-1] = cuts",
        "objectives/test_span_corruption.py objectives/test_selective_copying.py",
    ),
    Fault(
        "batching",
        "the start token is read in both directions",
        'fields["bidirectional"][row, begin:split] = True',
        'fields["bidirectional"][row, begin : split + 1] = True',
        "batching/test_packing.py",
    ),
    Fault(
        "batching",
        "a batch can read a mixture before its decision is published",
        "while not 0 <= decision < self._cells[0]:",
        "while not 0 <= decision <= self._cells[0]:",
        "batching/test_mixture_history.py",
    ),
    Fault(
        "models",
        "the target reaches the context in reverse",
        "(segment_ids != right) | ~bidirectional",
        "(segment_ids != right)",
        "models/test_layout.py",
    ),
    Fault(
        "models",
        "gated_ssm: the input is gated by 1 - f",
        "return f, i * z",
        "return f, (1 - f) * z",
        "models/test_gated_recurrences.py",
    ),
    Fault(
        "models",
        "birdie_ssm: the input has no activation",
        'z = tau(projection(self.state, "input", self.dtype)(x))',
        'z = projection(self.state, "input", self.dtype)(x)',
        "models/test_gated_recurrences.py",
    ),
    Fault(
        "models",
        "hawk: a sample's first input has the multiplier of the middle",
        "multiplier = jnp.where(not_reset, multiplier, 1.0)",
        "pass",
        "models/test_rg_lru.py models/test_oracles.py",
    ),
    Fault(
        "models",
        "mamba: the steps have no bias where a row is divided over devices",
        "total = jnp.sum(jax.nn.softplus(steps.astype(jnp.float32) + bias), axis=1)",
        "total = jnp.sum(jax.nn.softplus(steps.astype(jnp.float32)), axis=1)",
        "models/test_sharding.py engine/test_mesh.py models/test_mamba.py",
    ),
    Fault(
        "models",
        "attention: the window is one token too wide",
        "mask &= jnp.abs(index - index[:, None]) < window",
        "mask &= jnp.abs(index - index[:, None]) <= window",
        "models/test_window.py",
    ),
    Fault(
        "models",
        "encoders: S4D holds the input by Euler's rule",
        "c * jnp.expm1(log_a) / a",
        "c * log_a / a",
        "models/test_s4d.py",
    ),
    Fault(
        "models",
        "the loss of masked positions counts",
        "return jnp.where(loss_mask, loss, 0.0), correct & loss_mask\n    in_front",
        "return loss, correct & loss_mask\n    in_front",
        "models/test_token_losses.py",
    ),
    Fault(
        "bandit",
        "a rising loss earns the reward",
        "return reward(losses[jnp.maximum(row - 1, 0)], losses[row])",
        "return reward(losses[row], losses[jnp.maximum(row - 1, 0)])",
        "bandit/test_rewards.py bandit/test_state.py",
    ),
    Fault(
        "engine",
        "every parameter decays",
        "config.weight_decay, jax.tree.map(lambda policy: policy.weight_decay, policies)",
        "config.weight_decay, jax.tree.map(lambda policy: True, policies)",
        "optimizers",
    ),
    Fault(
        "engine",
        "checkpoint: a changed file is read as if it were whole",
        'if checksum != saved[f"{item}/{name}"].checksum:',
        "if False:",
        "engine/test_checkpoint.py engine/test_faults.py",
    ),
    Fault(
        "engine",
        "loop: a resumed run reads its data from the start",
        "batches.restore(start.position, state)",
        "batches.restore(batches.first_position(), state)",
        "engine/test_library.py engine/test_resume.py",
    ),
    Fault(
        "engine",
        "loop: dropout draws the same masks at every step",
        "jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _ROW_KEYS), step)",
        "jax.random.fold_in(jax.random.key(seed), _ROW_KEYS)",
        "pretraining/test_dropout_steps.py",
    ),
    Fault(
        "engine",
        "lease: it is taken from a trainer that still holds it",
        "if self.read() not in (before, None):",
        "if False:",
        "engine/test_lease.py",
    ),
    Fault(
        "engine",
        "mesh: rows that the devices cannot divide are accepted",
        "if rows % (row_shards * parts):",
        "if False:",
        "engine/test_mesh.py test_resolve.py",
    ),
    Fault(
        "storage",
        "a reader can see half a file",
        "        temporary.write_bytes(contents)\n        publish(temporary, path)",
        "        path.write_bytes(contents)",
        "storage/test_files.py storage/test_workdir.py storage/test_cache_folder.py",
    ),
    Fault(
        "storage",
        "bucket: a write whose answer is lost counts as refused",
        "return _find_own(path, token)",
        "return None",
        "storage/test_bucket_files.py",
    ),
    Fault(
        "pretraining",
        "an arm's validation loss is a sum, not a mean",
        "sums.loss / sums.tokens, sums.correct",
        "sums.loss, sums.correct",
        "pretraining/test_arm_validation.py",
    ),
    Fault(
        "finetuning",
        "every epoch has the same order",
        "np.random.default_rng((*self._seed, epoch))",
        "np.random.default_rng(self._seed)",
        "finetuning/test_packed_epochs.py",
    ),
    Fault(
        "tasks",
        "F1 counts a repeated word once",
        "common = (Counter(found) & Counter(wanted)).total()",
        "common = len(Counter(found) & Counter(wanted))",
        "tasks/test_answer_metrics.py",
    ),
    Fault(
        "tasks",
        "differences of two models have the wrong sign",
        "return _with_derived(other, derive) - _with_derived(one, derive)",
        "return _with_derived(one, derive) - _with_derived(other, derive)",
        "tasks/test_paired_differences.py",
    ),
    Fault(
        "tasks",
        "the error of a repeated id does not name the line that has it",
        "found the id {shown(name)}, which {places[name]} has; allowed: another",
        "found the id {shown(name)}; allowed: another",
        "tasks/test_records.py",
    ),
    Fault(
        "pruning",
        "recency keeps the oldest tokens",
        "lambda layer: layer.tokens.index.astype(jnp.float32)",
        "lambda layer: -layer.tokens.index.astype(jnp.float32)",
        "pruning",
    ),
    Fault(
        "pruning",
        "a share of 0 is accepted",
        "if not 0 < self.keep <= 1:",
        "if not 0 <= self.keep <= 1:",
        "pruning finetuning/test_pruned_step.py pruning_cost",
    ),
    Fault(
        "generation",
        "top_p is ignored",
        "if sampling.top_p < 1:",
        "if sampling.top_p > 1:",
        "generation/test_sampling.py",
    ),
    Fault(
        "generation",
        "a context read in both directions can be cut into chunks",
        "if whole and chunk_tokens is not None:",
        "if False:",
        "generation/test_saved_state.py",
    ),
    Fault(
        "interop",
        "mamba is exported with input and gate swapped",
        '("mixer.input.kernel", "mixer.output_gate.kernel")',
        '("mixer.output_gate.kernel", "mixer.input.kernel")',
        "interop/test_huggingface_folder.py",
    ),
    Fault(
        "interop",
        "a damaged tensor is read",
        "if checksums is not None and checksums.get(name) != _checksum(tensors[name]):",
        "if False:",
        "interop/test_model_folder.py",
    ),
    Fault(
        "reporting",
        "the heat map's rows are not in the order of their names",
        "image = np.ma.masked_invalid(heatmap.values[:, order].T)",
        "image = np.ma.masked_invalid(heatmap.values.T)",
        "reporting/test_curves.py",
    ),
    Fault(
        "reporting",
        "examples are put on the page as markup",
        "parts.append(escape(text[end : match.start()]))",
        "parts.append(Markup(text[end : match.start()]))",
        "reporting/test_report.py",
    ),
    Fault(
        "reporting",
        "a folder in the page's place has an error of the system alone",
        "if not is_remote(path) and path.is_dir():",
        "if False:",
        "reporting/test_report.py",
    ),
    Fault(
        "reporting",
        "a step below 0 is accepted",
        "if type(step) is not int or not 0 <= step <= _MAX_STEP:",
        "if type(step) is not int or not step <= _MAX_STEP:",
        "reporting/test_run_record.py",
    ),
    Fault(
        "planning",
        "a plan ignores how the state is divided",
        "prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize",
        "prod(leaf.shape) * leaf.dtype.itemsize",
        "planning/test_model_flops.py",
    ),
    Fault(
        "planning",
        "an all-reduce sends half its bytes",
        'factor = 2 if collective.kind == "all-reduce" else 1',
        "factor = 1",
        "planning/test_links.py",
    ),
    Fault(
        "config",
        "a batch need not divide into parts",
        "config.batching.rows % config.train.accumulation_steps == 0,",
        "True,",
        "test_config.py test_config_fields.py",
    ),
    Fault(
        "config",
        "the error of an unknown field does not say where there is one of that name",
        """return f"; such a field is {' and '.join(found)}" if found else \"\"""",
        'return ""',
        "test_config.py test_config_fields.py",
    ),
    Fault(
        "config",
        "a second thing of a name replaces the first",
        "if self.setdefault(name, thing) != thing:",
        "self[name] = thing\n        if False:",
        "test_registry.py",
    ),
    Fault(
        "resolve",
        "other batches keep the rows of the first",
        "return replace(self, config=sized.config)",
        "return replace(self, config=self.config)",
        "test_resolve.py",
    ),
    Fault(
        "launch",
        "every process is process 0",
        'f"--process_id={process}"',
        'f"--process_id=0"',
        "launch/test_commands.py launch/test_local.py",
    ),
    Fault(
        "linear_scan",
        "the initial state has no gradient",
        "return da, dx, dh0.astype(h0.dtype), None",
        "return da, dx, jnp.zeros_like(h0), None",
        "pallas_kernels/linear_scan/test_linear_scan.py",
    ),
    Fault(
        "linear_scan",
        "TPU: a chunk misses the one just before it",
        "reached = place >= distance",
        "reached = place > distance",
        "pallas_kernels/linear_scan/test_backends.py",
    ),
    Fault(
        "linear_scan",
        "GPU: a chunk misses the first one before it",
        "entering = through(carry, range(1, chunks))",
        "entering = through(carry, range(2, chunks))",
        "pallas_kernels/linear_scan/test_gpu.py pallas_kernels/linear_scan/test_backends.py",
    ),
    Fault(
        "gated_scan",
        "the last state of the reverse half is that of the wrong end",
        "h[:, 0, half:]], axis=-1)",
        "h[:, -1, half:]], axis=-1)",
        "pallas_kernels/gated_scan",
    ),
    Fault(
        "gated_scan",
        "TPU: the output gate gets no gradient from the state",
        "doperands += pull_gate(dy * h_rows[k, pl.ds(scratch_row + shift, TILE)])",
        "doperands += pull_gate(dy * h_rows[k, pl.ds(scratch_row, TILE)])",
        "pallas_kernels/gated_scan",
    ),
    Fault(
        "selective_scan",
        "TPU: D is left out",
        'refs["sums"][_kept(tile, k)] = span.vector("D", k) * u',
        'refs["sums"][_kept(tile, k)] = 0 * u',
        "pallas_kernels/selective_scan/test_selective_scan.py",
    ),
    Fault(
        "selective_scan",
        "GPU: the gradient of A lacks the step",
        "drate += steps.dt[t] * dlog",
        "drate += dlog",
        "pallas_kernels/selective_scan/test_gpu_kernel.py",
    ),
    Fault(
        "matrix_state",
        "an entering state passes resets",
        "return jnp.where(enters, c, 0.0), e,",
        "return c, e,",
        "pallas_kernels/gated_delta_rule pallas_kernels/ssd",
    ),
    Fault(
        "matrix_state",
        "gated_deltanet: skipped tokens write",
        "beta = jnp.where(skipped, 0.0, beta)",
        "pass",
        "models/test_carried_cache.py",
    ),
    Fault(
        "matrix_state",
        "mamba2: a reset does not cut the state where a row is divided over devices",
        "jnp.where(jnp.any(reset, axis=1)[:, None], 0.0, half)",
        "half",
        "engine/test_mesh.py",
    ),
    Fault(
        "hlo_analysis",
        "a product counts half its FLOPs",
        "return 2.0 * instruction.elements * float(extent)",
        "return 1.0 * instruction.elements * float(extent)",
        "hlo_analysis/test_flops.py hlo_analysis/test_recorded.py",
    ),
    Fault(
        "command line",
        "a user's error has a traceback",
        "except (BirdieError, *user_errors) as error:",
        "except user_errors as error:",
        "test_command_line.py",
    ),
    Fault(
        "command line",
        "a word that is no option is ignored",
        "if len(left) > 1:",
        "if False:",
        "test_command_line.py",
    ),
    Fault(
        "wheel",
        "the presets are not installed",
        '*("birdie_jax.configs", "birdie_jax.launch"),',
        '*("birdie_jax.launch",),',
        "test_wheel.py",
    ),
)


def find(fault: Fault, folder: Path) -> Path:
    """Return the file of a fault in a copy.

    Raises:
        SystemExit: the code does not occur exactly once.
    """
    found: list[Path] = []
    for part in CODE:
        for path in sorted((folder / part).rglob("*.py")) or [folder / part]:
            found += [path] * path.read_text().count(fault.code)
    if len(found) != 1:
        sys.exit(f"the code of {fault.what!r}: found {len(found)} times; allowed: once")
    return found[0]


def first_failure(folder: Path, tests: list[str], *, everything: bool) -> str:
    """Return the first of these tests that fails, or an empty text."""
    if not tests:
        return ""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [*command, *(["--all"] if everything else []), *tests],
        cwd=folder,
        # Processes that a test starts also import the copy.
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode in (0, _NO_TESTS):
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", run.stdout, re.MULTILINE)
    return failed[1] if failed else sys.exit(f"pytest ended with {run.returncode}: {run.stdout[-2000:]}")


def try_fault(fault: Fault, folder: Path) -> tuple[str, str]:
    """Return the tier and the test that catch a fault: "none" and an empty text if none does."""
    path = find(fault, folder)
    text = path.read_text()
    tests = [f"tests/{name}" for name in fault.tests.split()]
    path.write_text(text.replace(fault.code, fault.fault))
    tier = "fast"
    test = first_failure(folder, tests, everything=False)
    if not test:
        tier, test = "all", first_failure(folder, tests, everything=True)
    path.write_text(text)
    return (tier, test) if test else ("none", "")


def main() -> int:
    """Try the faults of the named rooms, or all faults; return the exit status."""
    rooms = set(sys.argv[1:]) or {fault.room for fault in FAULTS}
    caught: dict[str, list[str]] = {"fast": [], "all": [], "none": []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True, text=True
        )
        for name in filter(None, listed.stdout.split("\0")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
        for fault in FAULTS:
            find(fault, folder)
        chosen = [fault for fault in FAULTS if fault.room in rooms]
        print("| fault | room | tier | test |\n|---|---|---|---|")
        for fault in chosen:
            tier, test = try_fault(fault, folder)
            caught[tier].append(test)
            print(f"| {fault.what} | {fault.room} | {tier} | `{test}` |", flush=True)
        for tier in ("fast", "all"):
            if test := first_failure(folder, caught[tier], everything=tier == "all"):
                sys.exit(f"{test} fails without a fault too")
    return int(bool(caught["none"]))


if __name__ == "__main__":
    sys.exit(main())
