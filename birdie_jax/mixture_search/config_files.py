"""Configuration files that a search writes: the base configuration with a schedule of mixtures."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_collections

from birdie_jax.command_line import subscript_keywords
from birdie_jax.config_flag import load_config
from birdie_jax.mixture_search.folder import user_named_fields
from birdie_jax.storage import write_whole
from birdie_jax.storage.workdir import flat

_FILE = '''"""{title}"""

import ml_collections

from birdie_jax.config_flag import load_config


def get_config() -> ml_collections.ConfigDict:
    """Return the configuration of the search with this mixture."""
    config = load_config({base!r})
{changes}
    return config
'''


class BaseConfig:
    """The base configuration of a search, as the files that the search writes load it.

    Attributes:
        name: the argument of `load_config`, with an absolute path for a file.
        changes: the fields that the command line changes, by dotted names.
    """

    def __init__(self, argument: str, config: ml_collections.ConfigDict):
        """Compare a configuration with its file.

        Args:
            argument: the value of --config: a file or a preset, with its variant.
            config: the configuration with the changes of the command line.
        """
        file, colon, variant = argument.partition(":")
        self.name = f"{Path(file).absolute() if Path(file).is_file() else file}{colon}{variant}"
        whole = user_named_fields()
        given, loaded = (flat(one.to_dict(), whole) for one in (config, load_config(argument)))
        missing = object()
        self.changes: Mapping[str, Any] = {
            name: value for name, value in given.items() if loaded.get(name, missing) != value
        }

    def write(self, path: Path, title: str, stages: str) -> None:
        """Write a configuration file for --config.

        Args:
            path: the file to write.
            title: the first line of its docstring.
            stages: the mixture, in the format of `bandit.stages`.
        """
        changes = "\n".join(self._assignments(stages))
        text = _FILE.format(title=title, base=self.name, changes=changes)
        write_whole(path, text.encode())

    def _assignments(self, stages: str) -> Iterator[str]:
        for name, value in {**self.changes, "bandit.policy": "staged", "bandit.stages": stages}.items():
            (field,) = subscript_keywords([f"--config.{name}"])
            yield f"    {field.removeprefix('--')} = {value!r}"
