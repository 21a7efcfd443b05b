"""A train step made from a loss: gradient, accumulation, optimizer, compiled for a mesh."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Num, PyTree

from birdie_jax.array_types import Key, RowKeys, Scalar
from birdie_jax.config_types import Seed
from birdie_jax.engine import bad_steps
from birdie_jax.engine.bad_steps import BadStepRule
from birdie_jax.engine.checkpoint_format import REQUIRED, named_leaves
from birdie_jax.engine.checks import check_names, kind_of
from birdie_jax.engine.compiler_options import compiler_options
from birdie_jax.engine.layer_norms import SumsOfUpdate
from birdie_jax.engine.mesh import batch_sharding, replicated, replicated_context
from birdie_jax.engine.protocols import Hook
from birdie_jax.engine.state import StepMetrics, StepTotals, TrainState
from birdie_jax.errors import ConfigError
from birdie_jax.storage import Bounds, parse_typed

Summarise = Callable[[StepTotals], dict[str, float]]
Sections = Mapping[str, Callable[[Key], PyTree[jax.Array]]]
"""The `create_section` of each hook, by the hook's name."""
_Parts = Annotated[int, Bounds(at_least=1, at_most=2**20)]
# Separates the keys of rows from the keys of parameters and sections.
_ROW_KEYS = 0x726F7773


class SummedLoss(Protocol):
    """Returns the loss summed over a batch, and named sums to log, which add up over batches."""

    def __call__(  # noqa: D102
        self, params: PyTree[jax.Array], batch: PyTree[jax.Array], row_keys: RowKeys | None = None, /
    ) -> tuple[Scalar, dict[str, jax.Array]]: ...


class CompiledUpdate(Protocol):
    """A program of `jax.jit` that takes a step, and reuses the memory of its input state."""

    def __call__(  # noqa: D102
        self, state: TrainState, batch: PyTree[jax.Array], /, *frozen: PyTree[jax.Array]
    ) -> tuple[TrainState, StepMetrics]: ...

    def lower(self, state: TrainState, batch: PyTree, /, *frozen: PyTree) -> jax.stages.Lowered:
        """Return the program for these arguments, before it is compiled."""
        ...


class LossFunction(NamedTuple):
    """The loss to minimise: a mean over the contents of a batch.

    Attributes:
        sums: (params, batch) -> (the loss summed over the batch, named sums to log). The sums of parts of a
            batch add up to those of the batch.
        weight: batch -> the divisor of the summed loss, such as the number of its target tokens.
        tokens: batch -> the size of the batch for the throughput, float32.
        takes_row_keys: whether `sums` draws random numbers. Its third argument is then a key for each row
            of its batch, a function of the run's seed, the step and the number of the row within the global
            batch.
    """

    sums: SummedLoss
    weight: Callable[[PyTree], Scalar]
    tokens: Callable[[PyTree], Scalar]
    takes_row_keys: bool = False


class ShardedStep(NamedTuple):
    """A `Step` (see `protocols.py`), compiled by `jax.jit` for a mesh.

    Attributes:
        mesh: the device mesh of the run.
        abstract_state: shapes, types and shardings of the train state.
        create: () -> the state before the first step.
        sections: () -> the sections of that state.
        update: (state, batch, *frozen) -> (state, metrics); reuses the memory of its input state.
        summary: the sums of some steps -> the scalars to log.
        frozen: empty, or one tree of arrays that the loss reads and no step changes; abstract until
            `with_frozen` sets the arrays.
    """

    mesh: Mesh
    abstract_state: TrainState
    create: Callable[[], TrainState]
    sections: Callable[[], dict[str, PyTree]]
    update: CompiledUpdate
    summary: Summarise
    frozen: tuple[PyTree, ...] = ()

    def create_state(self) -> TrainState:
        """Return the state before the first step."""
        return self.create()

    def create_sections(self) -> dict[str, PyTree]:
        """Return the hooks' sections before the first step."""
        return self.sections()

    def summarise(self, totals: StepTotals) -> dict[str, float]:
        """Return the scalars to log for some steps."""
        return self.summary(totals)

    def __call__(self, state: TrainState, batch: PyTree[jax.Array]) -> tuple[TrainState, StepMetrics]:
        """Take one step."""
        return self.update(state, batch, *self.frozen)

    def with_frozen(self, frozen: PyTree[jax.Array]) -> "ShardedStep":
        """Return the same step with the frozen arrays set."""
        return self._replace(frozen=(frozen,))

    def starting_from(
        self, initial_params: Callable[[PyTree[jax.ShapeDtypeStruct]], Callable[[PyTree], PyTree]]
    ) -> "ShardedStep":
        """Return the same step with other parameters in its first state.

        Args:
            initial_params: shapes, types and shardings of the parameters -> a function from the parameters
                of `create_state` to the first parameters; called if there is no checkpoint. The optimizer's
                state is the one from `create_state`.
        """

        def create_state() -> TrainState:
            replace = initial_params(self.abstract_state.params)
            state = self.create_state()
            return state.replace(params=replace(state.params))

        return self._replace(create=create_state)


def make_step(
    init_params: Callable[[Key], PyTree],
    loss: LossFunction | Callable[[PyTree], LossFunction],
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    seed: int = 0,
    sections: Sections | None = None,
    summarise: Summarise | None = None,
    accumulation_steps: int = 1,
    param_shardings: Callable[[TrainState], TrainState] | None = None,
    batch_shardings: NamedSharding | None = None,
    rule: BadStepRule | None = None,
    sums_of_update: SumsOfUpdate | None = None,
    frozen: PyTree[jax.ShapeDtypeStruct] | None = None,
) -> ShardedStep:
    """Return the train step of a run on `mesh`.

    Args:
        init_params: key -> the parameters before the first step; traced by JAX.
        loss: the loss; with `frozen` a function of those arrays that returns it.
        optimizer: gradient -> update.
        mesh: the device mesh; its devices need not be attached until a function is called.
        seed: the seed of the keys of parameters, sections and rows.
        sections: the functions that make the sections of the hooks; see `sections_of`.
        summarise: the sums of some steps -> the scalars to log; None: each sum divided by the weight of the
            steps.
        accumulation_steps: the number of parts in which the gradient of a batch is computed, one after
            another. It changes only memory and rounding.
        param_shardings: shapes of a train state -> the sharding of each array; None: all are replicated.
        batch_shardings: the sharding of each array of a batch; None: the rows divided over `data` and
            `fsdp`.
        rule: the rule for steps that change nothing; None: those whose loss or gradient is not finite.
        sums_of_update: (gradient, update) -> named sums to log as well; None: none.
        frozen: shapes, types and shardings of arrays that the loss reads and no step changes. Checkpoints
            do not contain them. None: there are none.

    Raises:
        ConfigError: an argument is invalid. At the first call of the step: the loss does not return sums,
            or `accumulation_steps` does not divide the rows.
    """
    seed = parse_typed(Seed, seed, "seed", ConfigError)
    accumulation_steps = parse_typed(_Parts, accumulation_steps, "accumulation_steps", ConfigError)
    if not callable(init_params):
        raise ConfigError(f"init_params: found {kind_of(init_params)}; allowed: a function of a key")
    if frozen is None and not isinstance(loss, LossFunction):
        raise ConfigError(f"loss: found {kind_of(loss)}; allowed: a LossFunction(sums, weight, tokens)")
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise ConfigError(
            f"optimizer: found {kind_of(optimizer)}; allowed: an optax.GradientTransformation, such as "
            "optax.adam(1e-3)"
        )
    check_section_names(sections or {})

    def create_sections() -> dict[str, PyTree]:
        section_key = jax.random.split(jax.random.key(seed))[1]
        with replicated_context():
            created = {name: create(section_key) for name, create in (sections or {}).items()}
        created[bad_steps.SECTION] = bad_steps.create_recent_steps()
        return {name: section for name, section in created.items() if jax.tree.leaves(section)}

    def create_state() -> TrainState:
        params = init_params(jax.random.split(jax.random.key(seed))[0])
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), create_sections())

    with jax.set_mesh(mesh):
        shapes = jax.eval_shape(create_state)
    _check_params(shapes.params)
    if param_shardings is None:
        shardings = jax.tree.map(lambda _: replicated(mesh), shapes)
    else:
        shardings = param_shardings(shapes)
    given = () if frozen is None else (frozen,)

    def take(state: TrainState, batch: PyTree, *given: PyTree) -> tuple[TrainState, StepMetrics]:
        return take_step(
            loss if isinstance(loss, LossFunction) else loss(*given),
            *(optimizer, accumulation_steps, state, batch),
            seed=seed,
            rule=rule or BadStepRule(),
            sums_of_update=sums_of_update,
        )

    update = jax.jit(
        take,
        in_shardings=(
            shardings,
            batch_shardings or batch_sharding(mesh),
            *jax.tree.map(lambda leaf: leaf.sharding, given),
        ),
        out_shardings=(shardings, replicated(mesh)),
        donate_argnums=0,
        compiler_options=compiler_options(mesh.devices.flat[0].device_kind),
    )
    abstract_state = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        shardings,
    )
    return ShardedStep(
        mesh,
        abstract_state,
        jax.jit(create_state, out_shardings=shardings),
        jax.jit(create_sections, out_shardings=shardings.sections),
        update,
        summarise or summarise_means,
        given,
    )


def check_section_names(names: Iterable[str]) -> None:
    """Check that the names of hooks do not collide with the other parts of a state in a checkpoint.

    Raises:
        ConfigError: a name collides.
    """
    for name in names:
        taken = (*REQUIRED, bad_steps.SECTION)
        if not isinstance(name, str) or name in taken or not name or "/" in name:
            raise ConfigError(
                f"hook: found the name {name!r}; allowed: one without a slash, and none of "
                f"{', '.join(taken)}"
            )


def sections_of(hooks: Sequence[Hook]) -> Sections:
    """Return the functions that make the sections of some hooks, for `make_step`.

    Raises:
        ConfigError: two hooks have the same name.
    """
    check_names(hooks)
    return {hook.name: hook.create_section for hook in hooks}


def take_step(
    loss: LossFunction,
    optimizer: optax.GradientTransformation,
    accumulation_steps: int,
    state: TrainState,
    batch: PyTree,
    *,
    seed: int = 0,
    rule: BadStepRule | None = None,
    sums_of_update: SumsOfUpdate | None = None,
) -> tuple[TrainState, StepMetrics]:
    """Take one optimizer step on the mean loss of `batch`: a pure function of state and batch.

    A step that `rule` skips changes only the counts of steps. Without a rule, every step changes the
    parameters.

    The mean is over the whole batch for any number of parts, and random draws for a row depend on its
    number within the batch. So `accumulation_steps` changes only memory and rounding.
    """
    weight = jnp.maximum(_number("loss.weight", loss.weight(batch)), 1).astype(jnp.float32)
    tokens = _number("loss.tokens", loss.tokens(batch))
    # The inputs of `loss.sums` after the parameters. Keys are divided into parts like rows.
    inputs = (batch, _row_keys(seed, state.step, batch)) if loss.takes_row_keys else (batch,)

    def loss_of_part(params, part):
        returned = loss.sums(params, *part)
        if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], Mapping):
            raise ConfigError(
                f"loss.sums: found {kind_of(returned)}; allowed: a tuple of the summed loss and a "
                "dictionary of named sums"
            )
        return _number("loss.sums", returned[0]) / weight, returned[1]

    gradient = jax.value_and_grad(loss_of_part, has_aux=True)
    if accumulation_steps == 1:
        (mean, sums), grads = gradient(state.params, inputs)
    else:
        parts = _in_parts(inputs, accumulation_steps)

        def add_part(carried, part):
            (mean, sums), grads = gradient(state.params, part)
            return jax.tree.map(jnp.add, carried, (mean, sums, grads)), None

        one_part = jax.tree.map(lambda leaf: leaf[0], parts)
        (_, sums), _ = jax.eval_shape(gradient, state.params, one_part)
        no_sums = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), sums)
        start = (jnp.zeros((), jnp.float32), no_sums, jax.tree.map(jnp.zeros_like, state.params))
        (mean, sums, grads), _ = jax.lax.scan(add_part, start, parts)

    grad_norm = optax.tree.norm(grads)
    updates, optimizer_state = optimizer.update(grads, state.optimizer, state.params)
    changed = optax.apply_updates(state.params, updates), optimizer_state
    if sums_of_update is not None:
        sums = {**sums, **sums_of_update(grads, updates)}
    metrics = StepMetrics(mean, weight, grad_norm, tokens, sums)
    if rule is not None:
        recent = state.sections[bad_steps.SECTION]
        skipped, recent = rule.judge(recent, state.step, mean, grad_norm)
        changed = bad_steps.unless_skipped(skipped, (state.params, state.optimizer), changed)
        state = state.with_section(bad_steps.SECTION, recent)
        metrics = metrics.replace(
            skipped=skipped,
            num_skipped=recent.skipped,
            bad_in_a_row=recent.bad_in_a_row,
            ends_run=recent.bad_in_a_row > rule.max_in_a_row,
        )
    params, optimizer_state = changed
    return state.replace(step=state.step + 1, params=params, optimizer=optimizer_state), metrics


def summarise_means(totals: StepTotals) -> dict[str, float]:
    """Return each sum divided by the weight of the steps, the default of `make_step`.

    Raises:
        ConfigError: a sum is an array, which needs its own `summarise` in `make_step`.
    """
    for name, value in totals.sums.items():
        if np.ndim(value):
            raise ConfigError(
                f"summarise: the sum {name!r} has shape {np.shape(value)}; allowed: a number, or a "
                "`summarise` of your own"
            )
    return {name: float(value) / totals.weight for name, value in totals.sums.items()}


def _row_keys(seed: int, step: jax.Array, batch: PyTree) -> jax.Array:
    """Return a key for each row of the global batch of a step."""
    rows = jax.tree.leaves(batch)[0].shape[0]
    of_step = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _ROW_KEYS), step)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(of_step, jnp.arange(rows))


def _in_parts(batch: PyTree, parts: int) -> PyTree:
    """Divide the rows into parts; every device keeps its own rows in every part."""

    def cut(x):
        if x.shape[0] % parts:
            raise ConfigError(
                f"accumulation_steps: found {parts}; allowed: a divisor of the {x.shape[0]} rows of a batch"
            )
        return jnp.swapaxes(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 0, 1)

    return jax.tree.map(cut, batch)


def _check_params(params: PyTree[jax.ShapeDtypeStruct]) -> None:
    """Check that parameters are arrays that a gradient can change."""
    named = named_leaves(params)
    if not named:
        raise ConfigError("init_params: found no arrays; allowed: one or more")
    for name, leaf in named.items():
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ConfigError(f"init_params: found the type {leaf.dtype} for {name}; allowed: floats")


def _number(name: str, value: jax.Array | float) -> Num[Array, ""]:
    """Return a result of a loss for a whole batch, after checking that it is one number."""
    if jnp.ndim(value):
        raise ConfigError(f"{name}: found an array of shape {jnp.shape(value)}; allowed: a number, summed")
    return jnp.asarray(value)
