"""The folder of a search: its file names, and the record that prevents another search from using it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from birdie_jax.config import default_config
from birdie_jax.errors import ConfigError, shown
from birdie_jax.saved_config import read_json
from birdie_jax.storage import create_whole, exists, list_names, write_json
from birdie_jax.storage.metric_lines import has_begun
from birdie_jax.storage.workdir import FREE_FIELDS, Workdir, differences, flat

# A resumed run may change three more fields, but a search would compare proxies that take other steps.
_FREE_FIELDS = FREE_FIELDS - {"eval.stop_when", "train.outlier_deviations", "train.skip_batches"}
RECORD, RESULTS, FOUND, PAGE = "search.json", "mixture.json", "found.py", "index.html"


class SearchFolder:
    """The paths of all files of a search.

    Attributes:
        root: the absolute path of the folder.
    """

    def __init__(self, root: str):
        """Set the folder to `root`, which need not exist.

        Raises:
            ConfigError: `root` is a URL, or its path has a colon. A search appends to logs and reads
                configurations as local files.
        """
        if "://" in root:
            raise ConfigError(f"--workdir: found {shown(root)}; allowed: a folder, which jobs can share")
        self.root = Path(root).absolute()
        if ":" in str(self.root):
            raise ConfigError(
                f"--workdir: found {shown(str(self.root))}; allowed: a folder without a colon in its path, "
                "which begins a variant in --config=FILE:VARIANT"
            )
        self.results, self.found, self.page = (self.root / name for name in (RESULTS, FOUND, PAGE))

    def workdir(self, number: int) -> Workdir:
        """Return the workdir of a proxy."""
        return Workdir(self._path(number))

    def config(self, number: int) -> Path:
        """Return the configuration file of a proxy."""
        return self._path(number, ".py")

    def log(self, number: int) -> Path:
        """Return the log file of a proxy's output."""
        return self._path(number, ".log")

    def _path(self, number: int, suffix: str = "") -> Path:
        return self.root / "proxies" / f"{number:03d}{suffix}"

    def claim(self, seed: int, stages: int, config: Mapping[str, Any]) -> None:
        """Begin a search in the folder, or check that the folder contains the same search.

        If no proxy has trained a step yet, the new search replaces the old one, because the old
        configuration may have been wrong.

        Args:
            seed: the seed of the design.
            stages: the number of mixtures of a point.
            config: the configuration that all proxies share, as nested dictionaries.

        Raises:
            ConfigError: the folder contains a run or another search. The message names each field that
                differs.
        """
        if exists(Workdir(self.root).config):
            raise ConfigError(f"--workdir={self.root}: holds a run; allowed: a folder of its own")
        record = {"seed": seed, "stages": stages, "config": config}
        path = self.root / RECORD
        (self.root / "proxies").mkdir(parents=True, exist_ok=True)
        # If several jobs begin at once, one writes the record and all read it.
        if not path.exists():
            create_whole(path, (json.dumps(record, indent=2) + "\n").encode())
        found, wanted = _fields(read_json(path, "the record of a search")), _fields(record)
        # A field that is newer than the search had its default value. A removed field has no effect.
        found = _fields({"config": default_config().to_dict()}) | found
        changed = [
            f"{_flag(name)}: found {shown(now)}; allowed: {shown(before)}"
            for name, before, now in differences(found, wanted)
            if name in wanted and name.removeprefix("config.") not in _FREE_FIELDS
        ]
        if changed and not self._has_begun():
            write_json(path, record)
        elif changed:
            raise ConfigError(
                f"{self.root}: holds another search; use another --workdir, or its values: "
                f"{'; '.join(changed)}"
            )

    def check_texts(self) -> None:
        """Check that all proxies that have trained a step read the same text.

        Raises:
            ConfigError: they read several texts; the message names a proxy of each.
        """
        texts: dict[str, str] = {}
        for workdir in self._workdirs():
            if exists(workdir.text) and has_begun(workdir):
                text = read_json(workdir.text, "the identity of a run's text")
                texts.setdefault(str(text.get("sha256")), f"{workdir} on {text.get('place')}")
        if len(texts) > 1:
            raise ConfigError(
                f"{self.root}: found proxies on different texts: {', '.join(texts.values())}; allowed: one "
                "text; give it with --config.data.prepared, and remove the workdirs of the other proxies"
            )

    def _has_begun(self) -> bool:
        return any(has_begun(workdir) for workdir in self._workdirs())

    def _workdirs(self) -> list[Workdir]:
        names = [name for name in list_names(self.root / "proxies") if name.isdigit()]
        return [self.workdir(int(name)) for name in names]


def user_named_fields() -> list[str]:
    """Return the fields of a configuration with subfields that the user names, such as objectives.arms."""
    return [name for name, value in flat(default_config().to_dict()).items() if value == {}]


def _fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record, as JSON values, by dotted names."""
    whole = [f"config.{name}" for name in user_named_fields()]
    return flat(json.loads(json.dumps(record)), whole)


def _flag(name: str) -> str:
    return name if name.startswith("config.") else f"--{name}"
