"""The hooks of a run: which are due, and what they are called with."""

import time
from collections.abc import Sequence

from birdie_jax.engine.metrics_file import MetricsFile
from birdie_jax.engine.protocols import Hook, HookCall
from birdie_jax.engine.state import TrainState
from birdie_jax.engine.step_log import StepLog
from birdie_jax.engine.stop import SharedStop
from birdie_jax.engine.watch import Watch


class HookRunner:
    """Runs the hooks that are due, one after another, and logs what they measured."""

    def __init__(self, hooks: Sequence[Hook], num_steps: int, watch: Watch, stop: SharedStop):
        """Take the hooks of a run of `num_steps`.

        Raises:
            ValueError: two hooks have the same name.
        """
        names = [hook.name for hook in hooks]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"hooks: {name!r} is the name of {names.count(name)}; allowed: one each")
        self._hooks = hooks
        self._num_steps = num_steps
        self._watch = watch
        self._stop = stop
        self._called: set[str] = set()

    def resume(self, state: TrainState) -> None:
        """Let every hook get ready for the steps from `state.step` on."""
        for hook in self._hooks:
            hook.resume(state)

    def any_due(self, step: int) -> bool:
        """Tell whether a hook is due at `step`."""
        return any(hook.is_due(step, self._num_steps) for hook in self._hooks)

    def run(self, state: TrainState, step: int, file: MetricsFile, log: StepLog) -> TrainState | None:
        """Run every hook that is due at `step`; None if the run was asked to stop before all were done."""
        for hook in self._hooks:
            if not hook.is_due(step, self._num_steps):
                continue
            begin = time.monotonic()
            result = hook.run(state, self._call(hook, step))
            if result is None:
                if self._stop.answer is None:
                    raise RuntimeError(
                        f"hook {hook.name!r} has returned None, and the run was not asked to stop; "
                        "allowed: a HookResult"
                    )
                return None
            state = result.state
            if result.scalars:
                file.write(step, result.scalars)
            log.exclude(time.monotonic() - begin)
        return state

    def close(self) -> None:
        """Let every hook release what it holds."""
        for hook in self._hooks:
            hook.close()

    def _call(self, hook: Hook, step: int) -> HookCall:
        is_first = hook.name not in self._called
        self._called.add(hook.name)

        def heartbeat(phase: str) -> None:
            self._watch.heartbeat(step, f"{hook.name}, {phase}", compiles=is_first)

        def should_stop() -> bool:
            # At the end there is nothing left to stop.
            return step < self._num_steps and bool(self._stop.ask())

        return HookCall(step, self._num_steps, is_first, heartbeat, should_stop)
