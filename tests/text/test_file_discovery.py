"""A folder or a glob lists each file once, and names whatever cannot be read."""

import os
import re
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.errors import DataError
from birdie_jax.text import open_source


def names(spec, root):
    return [file.relative_to(root).as_posix() for file in open_source(str(spec)).files]


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "root"
    for name in ("a.txt", "b/c.txt", "b/d/e.txt", "f/g.txt", "f/.hidden/h.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


ALL = ["a.txt", "b/c.txt", "b/d/e.txt", "f/g.txt"]
EVERYTHING = ("", "**/*.txt", "**/*", "**", "**/**/*.txt")


@pytest.mark.parametrize("pattern", EVERYTHING)
@pytest.mark.parametrize(
    "links",
    [
        {},
        {"loop": "."},
        {"b/loop": ".."},
        {"b/one": "../f", "f/two": "../b"},
        {"0": "b", "1": "0", "b/d/2": "../../1"},
        {"b/d/up": "../../../root", "b/up": "../../root"},
        {"0.txt": "a.txt", "z.txt": "b/c.txt", "f/again.txt": "../b/d/e.txt"},
    ],
)
def test_each_file_is_listed_once_by_its_own_path(tree, links, pattern):
    for name, target in links.items():
        (tree / name).symlink_to(target)
    assert names(tree / pattern, tree) == ALL


@given(
    links=st.dictionaries(
        st.sampled_from(["x", "b/x", "b/d/x", "f/x", "y", "b/y", "f/y"]),
        st.sampled_from([".", "b", "b/d", "f", "x", "y", "b/x", "f/y"]),
    )
)
def test_circular_links_end(tmp_path_factory, links):
    root = tmp_path_factory.mktemp("links")
    for name in ALL:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    for name, target in links.items():
        (root / name).symlink_to(root / target)
    for pattern in EVERYTHING[:2]:
        assert names(root / pattern, root) == ALL


@pytest.mark.parametrize("pattern", EVERYTHING)
def test_a_linked_folder_elsewhere_is_read(tree, tmp_path, pattern):
    (tmp_path / "disk2" / "deep").mkdir(parents=True)
    (tmp_path / "disk2" / "deep" / "more.txt").write_text("more")
    (tree / "more").symlink_to(tmp_path / "disk2")
    (tree / "twice").symlink_to(tmp_path / "disk2" / "deep")
    assert names(tree / pattern, tree) == sorted([*ALL, "more/deep/more.txt"])


def test_hard_links_and_names_like_globs_are_separate_files(tree):
    os.link(tree / "a.txt", tree / "x[1].txt")
    os.link(tree / "a.txt", tree / "x1.txt")
    assert names(tree, tree) == sorted([*ALL, "x[1].txt", "x1.txt"])
    assert names(tree / "x[1].txt", tree) == ["x[1].txt"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.txt", ["a.txt"]),
        ("*/*.txt", ["b/c.txt", "f/g.txt"]),
        ("b/**/*.txt", ["b/c.txt", "b/d/e.txt"]),
        ("**/d/*", ["b/d/e.txt"]),
        ("**/d/**/*", ["b/d/e.txt"]),
        ("**/e.txt", ["b/d/e.txt"]),
        ("[bf]/?.txt", ["b/c.txt", "f/g.txt"]),
        ("f/.h*/*", ["f/.hidden/h.txt"]),
        ("f/.hidden/*", ["f/.hidden/h.txt"]),
        ("**/link/*", ["link/c.txt"]),
        ("*/../a.*", ["b/../a.txt"]),
    ],
)
def test_a_glob_matches_the_expected_files(tree, pattern, expected, monkeypatch):
    (tree / "link").symlink_to("b")
    found = names(tree / pattern, tree)
    assert found == expected or [os.path.normpath(name) for name in found] == ["a.txt"]
    monkeypatch.chdir(tree)
    assert [file.as_posix() for file in open_source(pattern).files] == found


def refused(spec, message):
    with pytest.raises(DataError, match=message) as caught:
        open_source(str(spec))
    assert "\n" not in str(caught.value)


def _deny(monkeypatch, folder):
    """Deny listing a folder, as the system does for users other than root."""
    scandir = os.scandir

    def denied(path="."):
        if os.path.realpath(path) == os.path.realpath(folder):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)


def test_an_unlistable_folder_is_named_if_it_is_searched(tree, monkeypatch):
    _deny(monkeypatch, tree / "b" / "d")
    for pattern in ("", "**/*.txt", "**", "b/*/*.txt", "b/d/*"):
        refused(tree / pattern, re.escape(f"{tree}/b/d: the folder cannot be read: Permission denied"))
    assert names(tree / "f", tree) == ["f/g.txt"]
    assert names(tree / "*.txt", tree) == ["a.txt"]


@pytest.mark.parametrize("pattern", ["b", "b/d/e.txt", "b/**/*.txt", "*/d/e.txt", "**/*.txt", ""])
def test_a_folder_without_permission_is_named(unprivileged_folder, pattern):
    inner = unprivileged_folder / "b" / "d"
    inner.mkdir(parents=True)
    (inner / "e.txt").write_text("e")
    (unprivileged_folder / "a.txt").write_text("a")
    inner.parent.chmod(0)
    refused(unprivileged_folder / pattern, re.escape(f"{unprivileged_folder}/b") + ".*: Permission denied")


def _make_socket(path):
    # Use a short path: a socket's path has at most 108 bytes.
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, r"a named pipe (FIFO)"),
        (_make_socket, "a socket"),
        (lambda path: path.symlink_to("/dev/zero"), "a device"),
    ],
)
@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"])
@pytest.mark.parametrize("pattern", ["{name}", "", "*", "**/*", "[o]ther.*"])
def test_an_irregular_file_is_named(tree, make, kind, suffix, pattern):
    path = tree / f"other{suffix}"
    make(path)
    spec = tree / pattern.format(name=path.name)
    refused(spec, re.escape(f"{path}: is {kind}; allowed: a regular file"))


def test_a_pipe_with_an_unsupported_suffix_is_ignored_in_a_folder(tree):
    os.mkfifo(tree / "pipe")
    assert names(tree, tree) == ALL
    refused(tree / "pipe", r"pipe: is a named pipe")


@pytest.mark.parametrize("target", ["nowhere.txt", "dangling.txt"])
@pytest.mark.parametrize("pattern", ["", "*.txt", "**", "dangling.txt"])
def test_a_broken_link_is_named(tree, target, pattern):
    (tree / "dangling.txt").symlink_to(target)
    refused(tree / pattern, r"dangling\.txt: cannot be read: (No such file|Too many levels)")


@pytest.mark.parametrize(
    "spec",
    ["x" * 100_000, "x" * 5000 + "/*.txt", "a\0b", "*\0*", "x\ny", "\udcff*"],
    ids=["long", "long folder", "null", "null in a glob", "two lines", "surrogate"],
)
def test_an_invalid_path_is_refused_with_one_short_line(spec, tmp_path):
    for given_spec in (spec, f"{tmp_path}/{spec}"):
        with pytest.raises(DataError, match="is not a file, a folder") as caught:
            open_source(given_spec)
        assert len(str(caught.value).splitlines()) == 1
        assert len(str(caught.value)) < 1000
