"""The end of a run, which may move while the learning rate does not depend on it."""

from collections.abc import Mapping
from typing import Any

END_FIELDS = frozenset({"optimizer.decay_shape", "optimizer.decay_steps", "train.num_steps"})
"""The fields of a configuration that decide when and how a run ends."""


def movable_fields(done: int, before: Mapping[str, Any], wanted: Mapping[str, Any]) -> frozenset[str]:
    """Return the fields of the end that may differ when a run resumes: all of them, or none.

    Neither end may change the rates of completed steps. With the schedule `wsd`, the rates before the decay
    do not depend on the end.

    Args:
        done: the number of completed train steps.
        before: the run's configuration, flat.
        wanted: the configuration of the resumed run, flat.
    """
    for config in (before, wanted):
        starts = config["train.num_steps"] - config["optimizer.decay_steps"]
        if config["optimizer.schedule"] != "wsd" or config.get("finetune.stages") or done > starts:
            return frozenset()
    # A warm-up is at most as long as the run.
    warm_ups = [min(one["optimizer.warmup_steps"], one["train.num_steps"] - 1) for one in (before, wanted)]
    if done and warm_ups[0] != warm_ups[1]:
        return frozenset()
    # A run with no step left would not validate its end.
    same_end = before["train.num_steps"] == wanted["train.num_steps"]
    return END_FIELDS if done < wanted["train.num_steps"] or same_end else frozenset()
