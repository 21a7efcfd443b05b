"""The folder for files that can be recreated; launch/environment.sh uses the same folder."""

import os
import pwd
from pathlib import Path

from birdie_jax.errors import ConfigError


def cache_folder() -> Path:
    """Return `birdie_jax` in $XDG_CACHE_HOME, or else in `.cache` in the home folder.

    A variable without an absolute path counts as unset (https://specifications.freedesktop.org/basedir).
    Without HOME, the home folder comes from the system's user database.

    Raises:
        ConfigError: there is no home folder; the message names the variables to set.
    """
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(cache):
        return Path(cache) / "birdie_jax"
    home = os.environ.get("HOME", "")
    if not os.path.isabs(home):
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            home = ""
    if not os.path.isabs(home):
        raise ConfigError(
            "no folder for caches: neither XDG_CACHE_HOME nor HOME is an absolute path, and user "
            f"{os.getuid()} has no home folder; set one of the two"
        )
    return Path(home) / ".cache" / "birdie_jax"
