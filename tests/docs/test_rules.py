"""The code does not contain forbidden modules and calls."""

import ast
from collections import Counter

import pytest

from tests.docs.pages import REPOSITORY

_FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "torch"}
# The code of exported models; no code here imports it.
_TEXT_OF_MODELS = REPOSITORY / "birdie_jax/interop/torch_models"
_FORBIDDEN_CALLS = {"eval", "exec", "__import__"}


def forbidden(source: str) -> list[str]:
    """Return the modules and calls of a source that could run data as code."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in _FORBIDDEN_MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in _FORBIDDEN_MODULES:
            found.append(node.module or "")
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in _FORBIDDEN_CALLS:
                found.append(node.func.id)
            found += [keyword.arg for keyword in node.keywords if keyword.arg == "allow_pickle"]
    return found


@pytest.mark.parametrize("package", ["birdie_jax", "pallas_kernels", "hlo_analysis", "launch"])
def test_nothing_is_unpickled_or_evaluated(package):
    for file in sorted((REPOSITORY / package).rglob("*.py")):
        allowed = {"torch", "torch.nn"} if file.parent == _TEXT_OF_MODELS else set()
        assert set(forbidden(file.read_text())) <= allowed, file


@pytest.mark.parametrize(
    "source", ["import pickle", "from pickle import loads", "eval('1')", "np.load(path, allow_pickle=True)"]
)
def test_the_check_finds_unpickling_and_evaluation(source):
    assert forbidden(source)


def test_test_files_outside_packages_have_unique_names():
    """pytest imports them by name and refuses a second file with the same name."""
    files = [
        path
        for path in (REPOSITORY / "tests").rglob("test_*.py")
        if not (path.parent / "__init__.py").exists()
    ]
    twice = [name for name, count in Counter(path.name for path in files).items() if count > 1]
    assert len(files) > 100 and twice == []
