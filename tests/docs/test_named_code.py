"""Every file, function, module or page that a page names exists."""

import re

import pytest

from tests.docs.pages import (
    FOLDERS,
    PAGES,
    REPOSITORY,
    code_spans,
    defines,
    fenced_blocks,
    find_file,
    named_files,
)

_FOLDERS = "|".join(FOLDERS)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))


def absent_names(text: str) -> list[str]:
    """Return each `path.py` and `path.py:name` of a page that is not in the tree."""
    absent = []
    for path, name in named_files(text):
        file = find_file(path)
        if file is None or (name and not defines(file, name)):
            absent.append(f"{path}:{name}" if name else path)
    return absent


def absent_paths(text: str) -> list[str]:
    """Return each file or folder in a page's code spans and blocks that is not in the tree."""
    code = [*code_spans(text), *(contents for _, contents in fenced_blocks(text))]
    named = re.findall(rf"(?<![\w/.:-])((?:{_FOLDERS})/[\w./-]*\w/?)", "\n".join(code))
    return [path for path in named if not (REPOSITORY / path).exists()]


def absent_modules(text: str) -> list[str]:
    """Return each module of ours that a page runs or imports and that is not in the tree."""
    named = re.findall(rf"python3? -m ((?:{_FOLDERS})[\w.]*)", text)
    for language, contents in fenced_blocks(text):
        if language == "python":
            named += re.findall(rf"^\s*(?:from|import) ((?:{_FOLDERS})[\w.]*)", contents, re.MULTILINE)
    paths = [REPOSITORY / name.replace(".", "/") for name in named]
    return [
        name
        for name, path in zip(named, paths, strict=True)
        if not path.with_suffix(".py").is_file() and not path.is_dir()
    ]


@each_page
def test_named_files_and_functions_exist(page):
    assert absent_names(page.read_text()) == []


@each_page
def test_named_paths_exist(page):
    assert absent_paths(page.read_text()) == []


@each_page
def test_named_modules_exist(page):
    assert absent_modules(page.read_text()) == []


@each_page
def test_links_have_targets(page):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[\w-]*)?\)", page.read_text())
    here = [link for link in links if "://" not in link]
    assert [link for link in here if not (page.parent / link).exists()] == []


@pytest.mark.parametrize(
    ("span", "is_absent"),
    [
        ("`birdie_jax/batch.py`", False),
        ("`birdie_jax/batch.py:Batch`", False),
        ("`birdie_jax/batch.py:Batch.tokens`", False),
        ("`models/layout.py:Layout.positions`", False),
        ("`birdie_jax/vocabulary.py:START`", False),
        ("`birdie_jax/butch.py`", True),
        ("`batch.py:Batch`", False),
        ("`batch.py:Batches`", True),
        ("`birdie_jax/batch.py:Batch.token`", True),
    ],
)
def test_the_check_finds_absent_names(span, is_absent):
    assert bool(absent_names(f"See {span}.")) == is_absent


def test_the_check_finds_absent_paths_and_modules():
    text = "`pytest tests/nowhere/test_none.py`\n```bash\npython -m birdie_jax.nothing\n```\n"
    assert absent_paths(text) == ["tests/nowhere/test_none.py"]
    assert absent_modules(text) == ["birdie_jax.nothing"]
