"""The whole page: its contents, no external references, and errors."""

import html.parser
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter

import pytest
from synthetic_workdir import paper_arms, tiny_arms, write_workdir

from birdie_jax.errors import RecordError
from birdie_jax.reporting import follow_report, write_report
from birdie_jax.reporting import page as page_module
from birdie_jax.reporting.run_record import RunRecord
from birdie_jax.reporting.section import HeadlineFigure, Section, SectionKind
from birdie_jax.reporting.sections import SECTIONS
from birdie_jax.reporting.sections.arm_table import ARM_TABLE
from birdie_jax.reporting.sections.bandit_decisions import BANDIT
from birdie_jax.reporting.sections.classes import CLASSES
from birdie_jax.reporting.sections.scalars import MACHINE, OTHER_SCALARS, TRAINING
from birdie_jax.reporting.sections.shares import SHARES
from birdie_jax.reporting.sections.tasks import TASKS
from birdie_jax.reporting.sections.what_ran import WHAT_RAN
from birdie_jax.vocabulary import special_token_name
from tests.forked_verbs import run_commands
from tests.pages.verbs import parsed

# A page takes seconds to draw, so tests of a few sections draw only these.
OF_SCALARS = (TRAINING, MACHINE, OTHER_SCALARS)
VOID = {"meta", "br", "wbr", "link", "img", "input", "hr", "base", "source", "embed"}


class Page(html.parser.HTMLParser):
    """Checks nesting while parsing, and keeps tags, attributes and the text outside of tags."""

    def __init__(self, source):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], Counter(), [], []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in {"dt", "dd", "td", "th", "li"}:
            self.text.append(" ")

    def handle_data(self, data):
        self.text.append(data)

    def words(self):
        return " ".join("".join(self.text).split())


def few_arms():
    """Copying, deshuffling and causal LM, for tests that do not depend on the number of arms."""
    return [tiny_arms()[index] for index in (3, 4, 7)]


def read(workdir, kinds=SECTIONS):
    path = write_report(workdir, kinds)
    assert path == workdir / "report.html"
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_workdir(
        tmp_path_factory.mktemp("runs") / "tiny",
        tiny_arms(),
        steps=200,
        log_every=5,
        decide_every=50,
        summary={"parameters": 812_345, "completed": True, "unigram_entropy": 6.2},
    )


@pytest.fixture
def short(tmp_path):
    return write_workdir(
        tmp_path / "short", few_arms(), steps=20, planned=40, log_every=10, decide_every=10
    )


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """The page of a run with markup in texts, non-finite numbers, and shares of target tokens."""
    workdir = write_workdir(
        tmp_path_factory.mktemp("runs") / "odd", few_arms(), steps=20, log_every=10, decide_every=10
    )
    arms = json.loads((workdir / "arms.json").read_text())
    arms[0]["examples"] = [
        {"context": "[COPY]<script>alert(1)</script> & [MASK_3]", "target": "a [NOT_ONE] </div>"}
    ]
    arms[1]["name"] = '<i>"arm"'
    (workdir / "arms.json").write_text(json.dumps(arms))
    lines = [
        {name.replace("deshuffling_rate0.5", '<i>"arm"'): value for name, value in line.items()}
        for line in read_lines(workdir)
    ]
    lines[-1] |= {"loss": float("nan"), "grad_norm": float("inf"), "arm/causal_lm/loss": float("nan")}
    write_lines(workdir, lines)
    config = json.loads((workdir / "config.json").read_text())
    config["objectives"]["shares_of"] = "target_tokens"
    (workdir / "config.json").write_text(json.dumps(config))
    page = read(workdir)
    return (workdir / "report.html").read_text(), page


@pytest.fixture(scope="module")
def tiny_page(tiny):
    return read(tiny)


def test_page_shows_the_figures_of_the_run(tiny, tiny_page):
    words = tiny_page.words()
    last = read_lines(tiny)[-1]
    assert "Complete: 200 steps" in words
    assert f"Final train loss {last['loss']:.3f}" in words
    assert f"Causal validation loss {last['arm/causal_lm/validation_loss']:.3f}" in words
    assert "Tokens seen 3.28 M" in words
    assert "Parameters 812 k" in words
    assert "Wall time 1 min 20 s" in words
    assert "4 rewarded decisions, the last at step 200" in words


def test_page_names_every_arm_class_and_setting(tiny, tiny_page):
    words = tiny_page.words()
    for arm in tiny_arms():
        assert arm["name"] in words
        assert arm["group"].replace("_", " ") in words
        for key, value in arm["parameters"].items():
            assert f"{key}={value}" in words
    for section in json.loads((tiny / "config.json").read_text()).values():
        for field in section if isinstance(section, dict) else ():
            assert field in words


def test_page_has_no_external_references(tiny_page, tiny):
    for tag, name, value in tiny_page.attributes:
        assert not name.startswith("on"), (tag, name)
        if name in ("src", "href", "xlink:href", "action", "data", "srcset"):
            assert value.startswith(("#", "data:image/png;base64,")), (tag, name, value[:80])
        assert not re.search(r"url\((?!#)", value), (tag, name, value[:80])
    assert not {"script", "link", "iframe", "img", "base"} & set(tiny_page.tags)
    source = (tiny / "report.html").read_text()
    assert "@import" not in source
    assert "http://" not in source
    assert "https://" not in source
    assert "default-src 'none'" in source


def test_ids_are_unique_and_references_have_targets(tiny_page):
    ids = Counter(value for _, name, value in tiny_page.attributes if name == "id")
    assert max(ids.values()) == 1
    targets = {value[1:] for _, name, value in tiny_page.attributes if name == "href" and value[0] == "#"}
    targets |= {t for _, _, value in tiny_page.attributes for t in re.findall(r"url\(#([^)]*)\)", value)}
    assert targets <= set(ids)
    assert any(target.startswith("s") for target in targets)  # plots do use clip paths


def test_the_style_sheet_defines_all_colours(tiny):
    source = (tiny / "report.html").read_text()
    assert not re.search(r"#a0000[0-9]|#a1[0-9a-f]{4}", source)
    defined = set(re.findall(r"(--[a-z0-9-]+):", source))
    assert set(re.findall(r"var\((--[a-z0-9-]+)\)", source)) <= defined


def test_unigram_entropy_is_drawn_only_if_known(tiny, tiny_page, odd):
    assert (tiny / "report.html").read_text().count(">unigram entropy<") == 1
    assert ">unigram entropy<" not in odd[0]


def test_examples_are_escaped_and_special_tokens_marked(odd):
    source, page = odd
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; " in source
    assert '<b class="token">[COPY]</b>' in source
    assert f'<b class="token">{special_token_name(67)}</b>' in source
    assert "a [NOT_ONE] &lt;/div&gt;" in source
    assert '<i>"arm"' in page.words()
    assert "i" not in page.tags


def test_non_finite_values_are_not_plotted_but_reported(odd):
    words = odd[1].words()
    assert "The training loss is not finite on 1 of 3 lines." in words
    assert "inf" not in re.findall(r"[a-z]+", words)


def test_mixtures_of_target_tokens_say_so(odd):
    words = odd[1].words()
    assert "The mixture has shares of target tokens" in words
    assert "Requested share of target tokens" in words
    assert "Sampling probability" not in words


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (-1, ("Not complete: step 1 of 200 (0.5 %)", "not measured yet", "No rewarded decision so far")),
        # The run has only validation losses.
        (0, ("Latest train loss –", "Best causal validation loss")),
    ],
)
def test_run_of_one_line(tmp_path, line, said):
    workdir = write_workdir(tmp_path, few_arms(), steps=1, planned=200, log_every=1, decide_every=512)
    write_lines(workdir, [read_lines(workdir)[line]])
    words = read(workdir).words()
    for text in said:
        assert text in words


def test_fixed_mixture_without_causal_arm(tmp_path):
    workdir = write_workdir(
        tmp_path, tiny_arms()[:3], steps=20, log_every=10, decide_every=10, policy="fixed"
    )
    words = read(workdir, (TRAINING, BANDIT)).words()
    assert "No rewarded decision so far. Policy fixed" in words
    assert "No arm of this run is causal language modelling." in words


def read_lines(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def write_lines(workdir, lines):
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def panel_titles(page_source):
    return re.findall(r"<figcaption><strong>([^<]*)</strong>", page_source)


def test_run_without_arms(tmp_path):
    """Any program that uses the engine gets a report of the values that it logged."""
    lines = [
        {"step": step, "loss": 1 / step, "learning_rate": 0.1, "rmse": 2 / step, "elapsed_seconds": step}
        for step in range(1, 5)
    ]
    write_lines(tmp_path, lines)
    page = read(tmp_path)
    source = (tmp_path / "report.html").read_text()
    assert panel_titles(source) == ["Train loss", "Learning rate", "rmse"]
    words = page.words()
    assert "Not recorded as complete: step 4" in words
    assert "Latest train loss 0.250" in words
    assert "4 scalars logged" in words
    for birdie in ("arm", "bandit", "Bandit", "nats", "causal", "Configuration", "of None"):
        assert birdie not in words.split()
    config = {"train": {"num_steps": 8}, "model": {"name": "gated_ssm"}, "note": "mine"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "summary.json").write_text('{"completed": true, "parameters": 7}')
    words = read(tmp_path).words()
    assert "Complete: 4 steps" in words
    assert "gated ssm, 4 scalars logged" in words
    assert "of 8 planned" in words
    assert "Parameters 7" in words
    assert "num_steps 8" in words


def test_unknown_scalars_have_a_curve_each(short):
    lines = read_lines(short)
    before = panel_titles(write_report(short, OF_SCALARS).read_text())
    for number, line in enumerate(lines):
        line |= {"mine/reach/exact_match": 0.1 * number, "mine/squad/f1": 0.2, "step_seconds": 0.5}
    write_lines(short, lines)
    page = read(short, OF_SCALARS)
    source = (short / "report.html").read_text()
    new = Counter(panel_titles(source)) - Counter(before)
    assert set(new) == {"mine/reach/exact match", "mine/squad/f1", "step seconds"}
    assert "mine 2 scalars" in re.sub(r"<[^>]*>", "", source)
    panel = source[source.index("<strong>mine/reach/exact match") :]
    assert "<path" in panel[: panel.index("</figure>")]
    assert ("a", "href", "#other-scalars") in page.attributes


def test_an_added_section_takes_its_scalars(short):
    """A new kind of section is one object; its scalars are drawn only once."""

    def make_section(run: RunRecord, scalars: tuple[str, ...]) -> Section | None:
        if not scalars:
            return None
        figures = tuple(HeadlineFigure(name, "seen") for name in scalars)
        return Section("tasks", "Tasks", "Tasks of mine", introduction=f"{run.last_step}", figures=figures)

    kinds = (SectionKind(make_section, scalars=("task/*",)), TASKS, *OF_SCALARS)
    write_report(short, kinds)
    assert "Tasks of mine" not in (short / "report.html").read_text()
    lines = [line | {"task/squad/f1": 0.2} for line in read_lines(short)]
    write_lines(short, lines)
    write_report(short, kinds)
    page = Page((short / "report.html").read_text())
    assert "Tasks of mine 20" in page.words()
    assert "task/squad/f1 seen" in page.words()
    assert ("a", "href", "#other-scalars") not in page.attributes


def test_more_classes_than_colours(tmp_path):
    arms = tiny_arms() + few_arms()
    for number, arm in enumerate(arms):
        arm |= {"name": f"arm{number}", "group": f"class {number}"}
    workdir = write_workdir(tmp_path, arms, steps=20, log_every=5, decide_every=10)
    words = read(workdir, (CLASSES, BANDIT, ARM_TABLE)).words()
    assert "11 arms in 11 classes" in words


def test_shares_are_shown_as_expected_and_as_measured(short):
    arms = json.loads((short / "arms.json").read_text())
    # The shares of examples, positions and target tokens of each arm, and the counts.
    shares = ((0.5, 0.625, 0.25), (0.25, 0.25, 0.125), (0.25, 0.125, 0.625))
    counts = ((6, 30, 10), (3, 20, 10), (1, 50, 60))
    lines = read_lines(short)
    for arm, expected, counted in zip(arms, shares, counts, strict=True):
        names = ("examples", "positions", "target_tokens", "counted_examples")
        arm["expected_shares"] = dict(zip(names, (*expected, 400), strict=True))
        for line, key in itertools.product(lines, range(3)):
            line[f"arm/{arm['name']}/{('examples', 'positions', 'tokens')[key]}"] = counted[key]
    (short / "arms.json").write_text(json.dumps(arms))
    write_lines(short, lines)
    words = read(short, (SHARES,)).words()
    assert "The mixture has shares of examples" in words
    assert "estimated from 1,200 examples" in words
    assert "copying_max_length128 50.0 % 60.0 % 62.5 % 30.0 % 25.0 % 12.5 %" in words
    assert "deshuffling_rate0.5 25.0 % 30.0 % 25.0 % 20.0 % 12.5 % 12.5 %" in words
    assert "causal_lm 25.0 % 10.0 % 12.5 % 50.0 % 62.5 % 75.0 %" in words


def test_an_old_run_has_no_expected_shares(short):
    assert "expected_shares" not in json.loads((short / "arms.json").read_text())[0]
    without = [
        {key: value for key, value in line.items() if not key.endswith(("/examples", "/positions"))}
        for line in read_lines(short)
    ]
    write_lines(short, without)
    words = read(short, (SHARES,)).words()
    assert "The run did not estimate expected shares when it began." in words
    assert re.search(r"causal_lm – – – – – \d+\.\d %", words)


PROGRAM = {
    "command": "train <x>",
    "environment": {"XLA_FLAGS": "--a"},
    "commit": None,
    "host": "there",
    "versions": {"birdie-jax": "1.2", "jax": "3.4", "Python": "5.6"},
}
START = {"began": "2026-01-02T03:04:05+00:00", "ended": None, "outcome": None, "step": None}
START |= {"program": PROGRAM, "processes": 2, "device": "H100", "devices": 16, "mesh": {"data": 16}}
ENDED = {"ended": "2026-01-02T04:34:05+00:00", "outcome": "stopped by SIGTERM", "step": 12}


def follow(workdir, monkeypatch, *changes):
    """Follow a run that a function changes in each pause; return the pages and the lines."""
    left, lines = iter(changes), []

    def sleep(seconds):
        assert seconds == 30
        next(left)()

    monkeypatch.setattr(page_module.time, "sleep", sleep)
    pages = [path.read_text() for path in follow_report(workdir, 30, [WHAT_RAN], say=lines.append)]
    assert next(left, None) is None
    return pages, lines


def record(workdir, *starts):
    return lambda: (workdir / "starts.json").write_text(json.dumps(starts))


@pytest.mark.parametrize("outcome", ["completed", "failed: no space", "stopped by SIGINT"])
def test_a_followed_page_reloads_until_the_run_ends(short, monkeypatch, outcome):
    """Launchers restart a run after SIGTERM."""
    (short / "summary.json").unlink(missing_ok=True)
    record(short, START)()
    pages, lines = follow(
        *(short, monkeypatch, record(short, START | ENDED), lambda: None),
        *(record(short, START | ENDED, START), record(short, START | ENDED, START | ENDED)),
        record(short, START | ENDED, START | ENDED, START | ENDED | {"outcome": outcome}),
    )
    reloads = ['<meta http-equiv="refresh" content="30">' in page for page in pages]
    assert reloads == [True, True, True, True, True, False]
    assert ["stopped by SIGTERM" in page for page in pages] == [False, True, True, True, True, True]
    assert lines == [f"{short}: stopped by SIGTERM at step 20; waits for its next start"] * 2


def test_following_waits_for_the_first_line_of_metrics(short, monkeypatch):
    metrics = short / "metrics.jsonl"
    lines = metrics.read_bytes()
    # While text is prepared, there is no start either.
    metrics.unlink()
    pages, said = follow(
        *(short, monkeypatch, record(short, START), lambda: metrics.write_bytes(b"")),
        *(lambda: metrics.write_bytes(lines[:20]), lambda: metrics.write_bytes(lines)),
        record(short, START | ENDED | {"outcome": "completed"}),
    )
    assert len(pages) == 2
    assert said == [f"{metrics}: waits for its first line"]
    metrics.unlink()
    with pytest.raises(RecordError, match=r"metrics\.jsonl: missing"):
        follow(short, monkeypatch)


def test_a_folder_without_a_run_is_not_followed(tmp_path, monkeypatch):
    with pytest.raises(RecordError, match=r"metrics\.jsonl: missing"):
        follow(tmp_path, monkeypatch)


def test_the_command_prints_each_wait(short, monkeypatch, capsys):
    record(short, START | ENDED)()
    (short / "summary.json").unlink(missing_ok=True)

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(page_module.time, "sleep", interrupt)
    options = [f"--workdir={short}", "--follow"]
    with parsed("report", options, whole=True) as report, pytest.raises(KeyboardInterrupt):
        report.main(["report"])
    printed = capsys.readouterr()
    assert printed.out == f"{short / 'report.html'}\n"
    said = f"{short}: stopped by SIGTERM at step 20; waits for its next start"
    assert printed.err == f"birdie_jax.report: {said}\n"


def test_the_page_describes_every_start(short):
    (short / "starts.json").write_text(json.dumps([START | ENDED, START]))
    words = read(short, [WHAT_RAN]).words()
    assert "Device hours 24.00 16 x H100, 2 starts, 1 without an end" in words
    assert "2026-01-02 03:04 UTC 1:30:00 12 stopped by SIGTERM 16 x H100 on there and 1 more" in words
    assert "unknown runs, or was killed" in words
    assert "mesh data=16 birdie-jax 1.2, JAX 3.4, Python 5.6" in words
    assert "train <x>" in words and "XLA_FLAGS" in words


@pytest.mark.slow
def test_the_page_of_a_large_run_is_small_and_fast(tmp_path):
    workdir = write_workdir(
        tmp_path, paper_arms(), steps=32_000, log_every=40, decide_every=512, summary={"completed": True}
    )
    start = time.process_time()
    words = read(workdir).words()
    assert time.process_time() - start < 15
    assert (workdir / "report.html").stat().st_size < 5e6
    for arm in paper_arms():
        assert arm["name"] in words
    assert "104 arms in 7 classes" in words
    assert "62 rewarded decisions" in words


@pytest.mark.slow
def test_report_verb_prints_the_path_and_needs_no_jax(short):
    code = (
        "import runpy, sys; sys.argv = ['report', sys.argv[1]]\n"
        "try: runpy.run_module('birdie_jax.report', run_name='__main__')\n"
        "finally: assert 'jax' not in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, f"--workdir={short}"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(short / "report.html")


@pytest.mark.slow
def test_report_verb_prints_errors_as_one_line(short):
    (short / "report.html").mkdir()
    refused = {
        short / "nowhere": (2, f"{short / 'nowhere'}: found no such"),
        short: (1, f"{short / 'report.html'}: "),
    }
    results = run_commands([("report", f"--workdir={workdir}") for workdir in refused])
    for (expected, said), (status, _, errors) in zip(refused.values(), results, strict=True):
        assert status == expected
        (line,) = errors.splitlines()
        assert line.startswith(f"birdie_jax.report: {said}")


@pytest.mark.parametrize(
    ("blocked", "reason"),
    [("report.html", "found a folder; allowed: a file"), ("report.html.partial", "cannot be written: ")],
)
def test_a_failed_write_leaves_the_obstacle_unchanged(short, blocked, reason):
    (short / blocked).mkdir()
    with pytest.raises(OSError, match=f"^{re.escape(str(short / 'report.html'))}: {reason}"):
        write_report(short, ())
    assert (short / blocked).is_dir()


def test_a_workdir_that_cannot_be_read_leaves_the_old_page(short):
    write_report(short, ())
    before = (short / "report.html").read_bytes()
    (short / "config.json").write_text("{")
    with pytest.raises(RecordError, match=r"config\.json: found no JSON"):
        write_report(short)
    assert (short / "report.html").read_bytes() == before
    assert sorted(path.name for path in short.iterdir()) == [
        "arms.json",
        "config.json",
        "metrics.jsonl",
        "report.html",
    ]


WRONG = [None, True, [], {}, "x", -1, 10**400, float("nan"), float("inf"), [[1]], "\ud800"]


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_json_of_other_types_gives_a_page_or_one_line(short, value):
    """Invalid values of fields that the page reads are refused in one line."""
    config = json.loads((short / "config.json").read_text())
    broken = {
        **{name: {**config, name: value} for name in ("train", "bandit", "model", "seed")},
        **{
            f"{section}.{field}": {**config, section: {**config[section], field: value}}
            for section, field in (("train", "num_steps"), ("bandit", "policy"), ("model", "name"))
        },
    }
    figures = ("completed", "unigram_entropy", "parameters", "vocab_size", "mine")
    summaries = {name: {"completed": False, name: value} for name in figures}
    cases = [("config.json", one) for one in broken.values()]
    cases += [("summary.json", one) for one in summaries.values()]
    for name, contents in cases:
        before = (short / name).read_text() if (short / name).exists() else "{}"
        (short / name).write_text(json.dumps(contents))
        try:
            # The top of the page reads them.
            assert write_report(short, ()).exists()
        except RecordError as error:
            assert "\n" not in str(error)
            assert name in str(error)
        (short / name).write_text(before)
