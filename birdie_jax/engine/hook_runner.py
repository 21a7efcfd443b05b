"""Call the hooks of a run when they are due."""

import math
import time
from collections.abc import Mapping, Sequence

from birdie_jax.engine.checks import check_hook_result
from birdie_jax.engine.metrics_file import MetricsFile
from birdie_jax.engine.protocols import Hook, HookCall
from birdie_jax.engine.state import TrainState
from birdie_jax.engine.step_log import StepLog
from birdie_jax.engine.stop import SharedStop
from birdie_jax.engine.watch import Watch
from birdie_jax.errors import TrainingDiverged


class HookRunner:
    """Runs the due hooks, one after another, and logs their measurements.

    Attributes:
        num_steps: the number of train steps of the run; smaller than planned after a hook ends the run.
    """

    def __init__(
        self,
        hooks: Sequence[Hook],
        num_steps: int,
        watch: Watch,
        stop: SharedStop,
        abstract_state: TrainState,
    ):
        """Create a runner for the hooks of a run of `num_steps` train steps."""
        self._hooks = hooks
        self.num_steps = num_steps
        self._watch = watch
        self._stop = stop
        self._abstract_state = abstract_state
        self._called: set[str] = set()

    def resume(self, state: TrainState) -> None:
        """Prepare every hook to continue at `state.step`."""
        for hook in self._hooks:
            hook.resume(state)

    def any_due(self, step: int) -> bool:
        """Return whether a hook is due at `step`."""
        return any(hook.is_due(step, self.num_steps) for hook in self._hooks)

    def run(self, state: TrainState, step: int, file: MetricsFile, log: StepLog) -> TrainState | None:
        """Run every hook that is due at `step`; return None if a signal stops the run before the last one.

        If a hook ends the run, the hooks that are due only at the end run after it.

        Raises:
            ConfigError: the result of a hook is not a resumable state with numbers.
        """
        planned = self.num_steps
        due = [hook for hook in self._hooks if hook.is_due(step, planned)]
        after = self._run_all(due, state, step, file, log)
        if after is None or self.num_steps == planned:
            return after
        at_end = [hook for hook in self._hooks if hook not in due and hook.is_due(step, step)]
        return self._run_all(at_end, after, step, file, log)

    def _run_all(
        self, hooks: Sequence[Hook], state: TrainState, step: int, file: MetricsFile, log: StepLog
    ) -> TrainState | None:
        for hook in hooks:
            begin = time.monotonic()
            result = hook.run(state, self._call(hook, step))
            if result is None and self._stop.answer is not None:
                return None
            scalars = check_hook_result(hook, result, self._abstract_state)
            assert result is not None  # check_hook_result has checked it
            state = result.state
            if result.ends_run:
                self.num_steps = step
            if scalars:
                _check_finite(hook.name, step, scalars)
                file.write(step, scalars, f"hook {hook.name!r}")
            log.exclude(time.monotonic() - begin)
        return state

    def close(self) -> None:
        """Let every hook release its resources."""
        for hook in self._hooks:
            hook.close()

    def _call(self, hook: Hook, step: int) -> HookCall:
        is_first = hook.name not in self._called
        self._called.add(hook.name)

        def heartbeat(phase: str) -> None:
            self._watch.heartbeat(step, f"{hook.name}, {phase}", compiles=is_first)

        def should_stop() -> bool:
            # A signal does not stop the hooks of the last step.
            return step < self.num_steps and bool(self._stop.ask())

        return HookCall(step, self.num_steps, is_first, heartbeat, should_stop)


def _check_finite(hook: str, step: int, scalars: Mapping[str, float]) -> None:
    """Raise `TrainingDiverged` if a hook measured NaN or infinity; name the hook, step and scalars."""
    bad = [f"{name} {value:.4g}" for name, value in scalars.items() if not math.isfinite(value)]
    if bad:
        raise TrainingDiverged(f"step {step}: hook {hook!r} measured {', '.join(bad)}")
