"""The folder for caches: the rules of XDG, and a user without a home."""

import pwd
from pathlib import Path

import pytest

from birdie_jax.errors import ConfigError
from birdie_jax.storage.cache_folder import cache_folder


@pytest.fixture
def system_home(monkeypatch):
    """Set what the system knows of the user: a home folder, or None for no entry."""

    def set_home(home):
        def entry(user):
            if home is None:
                raise KeyError(f"getpwuid(): uid not found: {user}")
            return pwd.struct_passwd(("me", "x", user, user, "", home, ""))

        monkeypatch.setattr(pwd, "getpwuid", entry)

    return set_home


@pytest.mark.parametrize(
    ("xdg", "homes", "expected"),
    [
        ("/cache", ("/home/me", None), "/cache/birdie_jax"),
        ("/cache", (None, None), "/cache/birdie_jax"),
        (None, ("/home/me", "/other"), "/home/me/.cache/birdie_jax"),
        ("", ("/home/me", None), "/home/me/.cache/birdie_jax"),
        ("relative", ("/home/me", None), "/home/me/.cache/birdie_jax"),
        ("~/cache", ("/home/me", None), "/home/me/.cache/birdie_jax"),
        (None, (None, "/other"), "/other/.cache/birdie_jax"),
        (None, ("", "/other"), "/other/.cache/birdie_jax"),
        (None, ("relative", "/other"), "/other/.cache/birdie_jax"),
        (None, (None, None), None),
        ("", ("", None), None),
        ("relative", ("relative", ""), None),
    ],
)
def test_folder(monkeypatch, system_home, xdg, homes, expected):
    """The two homes are that of HOME, and that which the system knows."""
    home, known = homes
    for name, value in (("XDG_CACHE_HOME", xdg), ("HOME", home)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    system_home(known)
    if expected is None:
        with pytest.raises(ConfigError, match="neither XDG_CACHE_HOME nor HOME is an absolute path"):
            cache_folder()
    else:
        assert cache_folder() == Path(expected)


def test_compiled_programs_are_not_kept_without_a_folder(monkeypatch, system_home, caplog):
    from birdie_jax import compiled_programs

    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    updated = []
    monkeypatch.setattr("jax.config.update", lambda name, value: updated.append(name))
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    compiled_programs.cache_compiled_programs()
    assert "jax_compilation_cache_dir" in updated
    updated.clear()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    system_home(None)
    with caplog.at_level("WARNING"):
        compiled_programs.cache_compiled_programs()
    assert not updated
    assert "compiled programs are not cached: no folder for caches" in caplog.text
