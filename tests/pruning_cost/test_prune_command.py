"""The command `prune`: cells, table and page; existing measurements are reused."""

import json
import random

import numpy as np
import pytest

from birdie_jax.models.attention import AttentionConfig
from tests.forked_verbs import run_commands
from tests.trained_workdirs import micro_config, write_workdir

pytestmark = pytest.mark.slow

CONTEXT, CONTINUATION, WINDOWS = 24, 8, 6
SIZES = (f"--context=16,{CONTEXT}", f"--continuation={CONTINUATION}", f"--windows={WINDOWS}", "--rows=4")
ASKED = ("--policy=influence,recency", "--keep=0.2", *SIZES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run, a smaller run, and a text with markup."""
    folder = tmp_path_factory.mktemp("prune")
    write_workdir(folder / "run", micro_config(layers=2))
    write_workdir(folder / "smaller", micro_config(layers=1))
    words = random.Random(1)
    for number in range(4):
        text = "".join(words.choices("abcdef <>&", k=400))
        (folder / f"text{number}.txt").write_text(text)
    return folder


@pytest.fixture(scope="module")
def measured(folder):
    """The results of a first run, of one with more conditions, and of one with the same conditions."""
    base = ("prune", f"--workdir={folder}/run", f"--output={folder}/out", f"--text={folder}/text*.txt")
    compared, without = f"--compare={folder}/smaller", ("--shown=0", "--traced=0")
    commands = [
        (*base, *ASKED, *without),
        (*base, *ASKED, *without, compared),
        (*base, *ASKED, compared, "--shown=1", "--traced=4"),
    ]
    results = run_commands(commands)
    for status, _, errors in results:
        assert status == 0, errors
    return results


def test_every_condition_is_measured_once(folder, measured):
    logged = [[line for line in errors.splitlines() if ": loss " in line] for _, _, errors in measured]
    assert [len(lines) for lines in logged] == [2 * (1 + 2), 2, 0]
    assert measured[1][1] == measured[2][1]
    assert len(list((folder / "out/cells").iterdir())) == 8


def test_differences_are_paired_and_flops_fall(folder, measured):
    cells = json.loads((folder / "out/results.json").read_text())["cells"]
    files = [json.loads(path.read_text()) for path in (folder / "out/cells").iterdir()]
    losses = {(one["model"], one["policy"], one["keep"], one["context"]): one for one in files}
    own = f"{folder}/run step 5"
    assert {one["model"] for one in cells} == {own, f"{folder}/smaller step 5"}
    for cell in cells:
        found = losses[cell["model"], cell["policy"], cell["keep"], cell["context"]]
        dense = losses[own, "dense", 1.0, cell["context"]]
        assert len(found["losses"]) == WINDOWS
        assert cell["loss"]["mean"] == pytest.approx(np.mean(found["losses"]))
        expected = np.mean(np.subtract(found["losses"], dense["losses"]))
        assert cell["from_dense"]["mean"] == pytest.approx(expected, abs=1e-9)
        if cell["policy"] == "recency":
            influence = losses[own, "influence", cell["keep"], cell["context"]]
            expected = np.mean(np.subtract(found["losses"], influence["losses"]))
            assert cell["from_influence"]["mean"] == pytest.approx(expected, abs=1e-9)
        if cell["policy"] in ("recency", "influence"):
            assert cell["paper_flops"] < dense["paper_flops"]
            assert cell["executed_flops"] < dense["executed_flops"]
            assert found["losses"] != dense["losses"]


def test_the_page_shows_plots_and_survivors(folder, measured):
    page = (folder / "out/index.html").read_text()
    assert page.count("<svg ") == 2 + 1 + 3
    assert "influence, keep 0.2, window 0" in page
    assert "<b>" not in page.split("Which tokens survive")[1]
    assert "&lt;" in page.split("Which tokens survive")[1]
    assert (folder / "out/table.txt").read_text() + f"{folder}/out/index.html\n" == measured[2][1]


def test_wrong_input_fails_with_one_line(folder, measured):
    section = AttentionConfig(heads=2)
    write_workdir(folder / "attention", micro_config(name="transformer", sections=(section,)))
    run, out, text = f"--workdir={folder}/run", f"--output={folder}/out", f"--text={folder}/text*.txt"
    new = f"--output={folder}/new"
    cases = [
        ((run, out, text, *SIZES, "--keep=0.5,x"), "--keep: found '0.5,x'; allowed: numbers"),
        ((run, out, text, *SIZES, "--keep=0"), "keep: found 0.0; allowed: above 0, at most 1"),
        ((run, out, text, *SIZES, "--policy=loudest"), "policy: found 'loudest'; allowed: influence, "),
        ((run, out, text, "--windows=99999"), "--windows: found 99,999 of 356 tokens"),
        ((run, out, text, "--context=0"), "--context: found 0; allowed: at least 1"),
        ((run, out, text, *SIZES, "--pruning=shares=1,0.5"), "--pruning: found 'shares=1,0.5'"),
        ((run, out, text, *SIZES, "--objective=copying"), "copying"),
        ((run, out, text, *SIZES, "--pruning=norm=l2"), "--pruning: "),
        ((run, out, text, *SIZES, "--windows=5"), "--windows: "),
        ((run, out, *SIZES), "text.json: not found; allowed: --text"),
        ((out, text), "give either --workdir, a run, or --model"),
        ((f"--model={folder}/x", out), "--model: an exported folder has one step and no text"),
        ((run, out, text, *SIZES, "--policy="), "--policy: found ''; allowed: one or more of influence"),
        ((run, out, text, *SIZES, "--compare="), "--compare: found ''; allowed: a workdir"),
        ((run, new, text, *SIZES, f"--compare={folder}/no"), f"{folder}/no/config.json: not found"),
        ((run, f"--output={folder}/text0.txt", text), f"found the file {folder}/text0.txt; allowed: a fol"),
        ((run, f"--output={folder}/in", f"--text={folder}"), "is in the folder"),
        ((f"--workdir={folder}/attention", out, text), "found model 'transformer', which has attention"),
    ]
    results = run_commands([("prune", *arguments) for arguments, _ in cases])
    for (arguments, said), (status, output, errors) in zip(cases, results, strict=True):
        assert status == 2, (arguments, output, errors)
        *_, line = errors.splitlines()
        assert line.startswith("birdie_jax.prune: "), errors
        assert said in line, line
        assert "Traceback" not in errors
        assert ": loss " not in errors
    assert not (folder / "new").exists()
