"""A user's own code: imported once, hashed; from a bucket or an export only on request."""

import sys

import pytest

from birdie_jax import imports
from birdie_jax.config import default_config, parse_config, to_dict
from birdie_jax.engine import Workdir
from birdie_jax.errors import ConfigError
from birdie_jax.imports import changed_extensions, import_extension, unknown_extensions
from birdie_jax.registry import Registry
from birdie_jax.saved_config import parse_saved_config
from tests.micro_config import get_config

THINGS = Registry("thing")
CODE = "from tests.test_imports import THINGS\nTHINGS.register(__name__, 1)\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return the current folder with a module and a package; forget imports afterwards."""
    package = tmp_path / "mine_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text(CODE)
    (tmp_path / "mine.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(imports, "_imported", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("mine")]:
        del sys.modules[name]
    THINGS.clear()


def test_a_module_runs_once_and_is_identified_by_its_hash(folder):
    entry = import_extension("mine", "--import")
    assert entry.startswith("mine#sha256:")
    assert list(THINGS) == ["mine"]
    assert import_extension(entry, "--import") == entry
    (folder / "mine.py").write_text(CODE + "#")
    assert import_extension("mine", "--import") == entry, "what runs is the code that was imported"
    assert changed_extensions([entry]) == []
    assert changed_extensions(["mine#sha256:0", "mine", "other#sha256:0"]) == ["mine"]
    assert unknown_extensions(["mine#sha256:0", "other"]) == ["other"]


def test_modules_of_packages_and_files(folder):
    first = import_extension("mine_package", "--import")
    assert import_extension("mine_package.one", "--import") != first
    imports._imported.clear()
    (folder / "mine_package" / "one.py").write_text(CODE + "#")
    assert import_extension("mine_package", "--import") != first, "the hash is of all files of a package"
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine_too.py").write_text(CODE)
    import_extension("elsewhere/mine_too.py", "--import")
    assert list(THINGS) == ["mine_package.one", "mine_too"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "mine_none",
            "--import: found 'mine_none', which Python cannot find; allowed: a module",
        ),
        ("mine_none.x", "--import: found 'mine_none.x': ModuleNotFoundError: No module named 'mine_none'"),
        ("none.py", "--import: found 'none.py', which does not exist; allowed: a module"),
        ("..mine", "--import: found '..mine': "),
        ("mine_bad", "--import: mine_bad does not run: ZeroDivisionError: division by zero"),
        ("json.py", "already has; allowed: another"),
    ],
)
def test_invalid_imports_are_refused(folder, name, said):
    (folder / "mine_bad.py").write_text("1 / 0\n")
    (folder / "json.py").write_text("")
    with pytest.raises(ConfigError) as caught:
        import_extension(name, "--import")
    assert said in str(caught.value)


def saved(**changed):
    return to_dict(parse_config(get_config("fixed"))) | changed


def test_a_configuration_imports_before_it_is_read():
    config = default_config()
    config.imports = ("mine",)
    parsed = parse_config(config)
    assert list(THINGS) == ["mine"]
    assert parsed.imports == (import_extension("mine", ""),)
    config.imports = ("mine_none",)
    with pytest.raises(ConfigError, match=r"^config\.imports\[0\]: found 'mine_none'"):
        parse_config(config)
    config.imports = (3,)
    with pytest.raises(ConfigError, match=r"^config\.imports"):
        parse_config(config)


def test_a_run_imports_again_and_reports_changes(caplog):
    parse_saved_config(saved(imports=["mine#sha256:0"]), "runs/config.json", importing=True)
    assert list(THINGS) == ["mine"]
    assert "runs/config.json: the code of mine has changed since" in caplog.text


def test_only_requested_names_are_imported(caplog):
    found = saved(imports=["mine#sha256:0"])
    config = parse_saved_config(found, "gs://a/config.json", importing=False)
    assert list(THINGS) == []
    assert config.imports == ("mine#sha256:0",)
    assert "gs://a/config.json: needs the code of mine" in caplog.text
    assert "--import=mine" in caplog.text
    caplog.clear()
    import_extension("mine", "--import")
    parse_saved_config(found, "gs://a/config.json", importing=False)
    assert "needs the code" not in caplog.text
    assert "the code of mine has changed since" in caplog.text


def test_changed_code_is_reported_on_resume(tmp_path, caplog):
    workdir = Workdir(tmp_path / "run")
    workdir.claim(saved(imports=["mine#sha256:0"]), saved())
    assert caplog.text == ""
    entry = import_extension("mine", "")
    workdir.claim(saved(imports=[entry]), saved())
    assert "the code of mine has changed since the last start" in caplog.text
