"""The verbs of birdie_jax in this process; their imports define flags, some with equal names."""

import contextlib
import importlib
import sys
import unittest.mock
from collections.abc import Iterator, Sequence
from types import ModuleType

from absl import flags

from birdie_jax.command_line import subscript_keywords
from birdie_jax.config_flag import check_overrides

REQUIRED = {
    "train": ("config", "workdir"),
    "plan": ("config", "topology"),
    "check_device": ("config",),
    "export": ("output",),
    "import_model": ("source", "output"),
    "report": ("workdir",),
    "search_mixture": ("config", "workdir"),
    "draw_kernels": ("workdir", "output"),
    "prepare_data": ("output",),
    "generate": (),
    "evaluate": ("task",),
    "prune": ("workdir", "output"),
    "tasks.infilling_filter": ("input", "output"),
    "tasks.seed_summary": ("workdir",),
}


@contextlib.contextmanager
def parsed(verb: str, arguments: Sequence[str], *, whole: bool) -> Iterator[ModuleType]:
    """Parse a verb's command line like the verb; yield its module, with the values of its flags set.

    Args:
        verb: the name of a module of birdie_jax.
        arguments: the arguments after the module.
        whole: whether the required flags must be present.

    Raises:
        absl.flags.Error: a flag is unknown or has an invalid value.
        ConfigError: `--config.section.field` names no field.
    """
    # Flags of verbs that another test has imported.
    aside = {flag: flags.FLAGS[flag] for flag in flags.FLAGS if _is_of_verb(flag)}
    for flag in aside:
        delattr(flags.FLAGS, flag)
    before = set(flags.FLAGS)
    name = f"birdie_jax.{verb}"
    others = sys.modules.pop(name, None)
    try:
        module = importlib.import_module(name)
        for flag in flags.FLAGS:
            # `whole` checks required flags here; `app.run` does in a program.
            flags.FLAGS[flag].required = False
            validators = flags.FLAGS[flag].validators
            flags.FLAGS[flag].validators = [one for one in validators if "None" not in one.message]
        check_overrides(arguments)
        # ml_collections reads the fields to set from sys.argv.
        with unittest.mock.patch.object(sys, "argv", subscript_keywords([verb, *arguments])):
            left = flags.FLAGS(sys.argv)
        assert left == [verb], f"unknown arguments {left[1:]}"
        if whole:
            missing = [flag for flag in REQUIRED[verb] if not flags.FLAGS[flag].present]
            assert not missing, f"{missing} not given"
        yield module
    finally:
        for flag in set(flags.FLAGS) - before:
            delattr(flags.FLAGS, flag)
        for flag, definition in aside.items():
            flags.FLAGS[flag] = definition
        flags.FLAGS.unparse_flags()
        sys.modules.pop(name, None)
        if others is not None:
            sys.modules[name] = others


def _is_of_verb(flag: str) -> bool:
    # In tests jaxtyping calls the functions that define flags; None: a restored flag.
    module = flags.FLAGS.find_module_defining_flag(flag)
    return module is None or module.startswith(("birdie_jax", "jaxtyping"))
