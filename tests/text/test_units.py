"""Units of a plan make the same folder with any runner, in any order, even if killed or run twice."""

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from birdie_jax.errors import DataError
from birdie_jax.storage import list_names, publish, remove
from birdie_jax.text import TokenShards, beam_runner, load_manifest, prepare, units
from birdie_jax.text.locations import locate
from birdie_jax.text.preparation_plan import load_plan
from birdie_jax.text.tokenizer_training import sample_by_hash
from birdie_jax.text.units import advance, count_units, run_unit
from tests.hub_server import run_hub_server
from tests.text.prepared_folders import COMPRESS, command, contents, is_running, json_lines, parquet
from tests.whole_runs import REPOSITORY

UNITS = 4


@pytest.fixture
def source(tmp_path, make_texts):
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(6):
        texts = make_texts(30 * (number + 1), seed=number)
        data = parquet(texts, 16) if number % 2 else COMPRESS[".zst"](json_lines(*texts, ""))
        (folder / f"{number}{'.parquet' if number % 2 else '.jsonl.zst'}").write_bytes(data)
    return folder


@pytest.fixture
def settings(settings):
    return settings | {"units": UNITS, "shard_tokens": 1000}


@pytest.fixture(params=["given", "trained"])
def either(request, settings):
    """Settings with a given tokenizer, or with one to train."""
    if request.param == "given":
        return settings
    return settings | {"tokenizer_model": "", "vocab_size": 330, "sample_bytes": 20_000}


@pytest.fixture
def expected(source, either, tmp_path):
    """The folder that the local runner makes."""
    return contents(prepare(str(source), tmp_path / "local", **either))


def plan(source, output, settings):
    return locate(prepare(str(source), output, run_units=False, **settings))


def run_all(directory, numbers=range(UNITS)):
    complete = False
    while not complete:
        for number in numbers:
            run_unit(directory, number)
        complete = advance(directory)


def test_the_local_runner_makes_a_folder_for_training(source, expected, settings, tmp_path):
    assert {name for name in expected if "arrayrecord" not in name} == {
        *("manifest.json", "source_files.jsonl", "tokenizer.model"),
    }
    manifest = load_manifest(tmp_path / "local")
    assert (manifest.empty_documents, manifest.settings.units) == (3, UNITS)
    assert (
        sum(TokenShards(tmp_path / "local", split).num_documents for split in ("train", "validation"))
        == 630
    )
    # The same command accepts the complete folder.
    prepare(str(source), tmp_path / "local", **(settings | _changes(manifest)))
    assert contents(tmp_path / "local") == expected


def _changes(manifest):
    found = manifest.settings
    trained = {"tokenizer_model": "", "vocab_size": found.vocab_size, "sample_bytes": found.sample_bytes}
    return {} if found.tokenizer_model else trained


def test_units_give_the_same_documents_as_one_preparation(source, settings, tmp_path):
    planned = prepare(str(source), tmp_path / "planned", **settings)
    whole = prepare(str(source), tmp_path / "whole", **(settings | {"units": 0}))
    for split in ("train", "validation"):
        records = [
            [record.tokens.tolist() for record in TokenShards(each, split)] for each in (planned, whole)
        ]
        assert records[0] == records[1]


@pytest.mark.sampled
def test_units_may_run_in_any_order_and_repeatedly(source, expected, either, tmp_path):
    directory = plan(source, tmp_path / "out", either)
    numbers = [*range(UNITS), *range(UNITS)]
    random.Random(0).shuffle(numbers)
    run_all(directory, numbers)
    assert contents(directory) == expected
    # A late run of a unit changes nothing.
    run_unit(directory, 0)
    assert contents(directory) == expected
    with pytest.raises(DataError, match="unit is 9; allowed: 0 to 3"):
        run_unit(directory, 9)


def test_a_complete_folder_without_units_is_refused(source, settings, tmp_path):
    directory = locate(prepare(str(source), tmp_path / "whole", **(settings | {"units": 0})))
    before = contents(directory)
    message = "whole: found a complete folder that was prepared without units"
    for work in (partial(run_unit, number=0), advance, count_units):
        with pytest.raises(DataError, match=message):
            work(directory)
    assert contents(directory) == before


class _Killed(BaseException):
    """Simulates a kill of the process."""


@pytest.mark.sampled
def test_a_unit_killed_at_each_file_repeats_only_its_own_work(
    source, expected, either, tmp_path, monkeypatch
):
    directory = plan(source, tmp_path / "out", either)
    deaths = 0

    def dying(temporary, final):
        nonlocal left
        if left == 0:
            raise _Killed
        left -= 1
        publish(temporary, final)

    def until_it_ends(work, *arguments):
        nonlocal deaths, left
        survived = 0
        while True:
            left = survived
            survived += 5
            try:
                with monkeypatch.context() as patch:
                    patch.setattr("birdie_jax.text.units.publish", dying)
                    patch.setattr("birdie_jax.storage.files.publish", dying)
                    patch.setattr("shutil.rmtree", lambda *_, **__: None)
                    return work(*arguments)
            except _Killed:
                deaths += 1

    left = 0
    complete = False
    while not complete:
        for number in range(UNITS):
            until_it_ends(run_unit, directory, number)
        complete = until_it_ends(advance, directory)
    assert deaths > 5
    advance(directory)
    assert contents(directory) == expected


@pytest.mark.sampled
def test_a_unit_that_runs_twice_at_once_is_complete(source, expected, either, tmp_path, monkeypatch):
    """Another process runs the same unit while this one is between two files."""
    directory = plan(source, tmp_path / "out", either)
    inner = 0

    def doubled(temporary, final):
        nonlocal inner
        inner += 1
        if inner == 3:
            run_unit(directory, 1)
        publish(temporary, final)

    with monkeypatch.context() as patch:
        patch.setattr("birdie_jax.text.units.publish", doubled)
        run_all(directory)
    assert inner > 3
    assert contents(directory) == expected


@pytest.mark.sampled
def test_a_bucket_gets_the_same_files(source, expected, either, tmp_path, bucket_url):
    run_all(plan(source, bucket_url, either))
    assert contents(bucket_url) == expected


def test_missing_units_and_shards_are_named(source, settings, tmp_path):
    directory = plan(source, tmp_path / "out", settings)
    run_unit(directory, 1)
    with pytest.raises(
        DataError, match=r"out: 3 of 4 units have not written their shards: 0, 2, 3; run each wi"
    ):
        advance(directory)
    with pytest.raises(DataError, match="unit is 4; allowed: 0 to 3"):
        run_unit(directory, 4)
    for number in range(UNITS):
        run_unit(directory, number)
    (shard, *_) = (name for name in list_names(directory) if name.startswith("train-u00002"))
    remove(directory / shard)
    with pytest.raises(DataError, match=f"{shard}: the shard cannot be read: No such file"):
        advance(directory)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"units": 7}, "units is 7; allowed: 1 to 6, the number of files of"),
        ({"units": -1}, "units is -1; allowed: 0 to 1,048,576"),
        ({"deduplicate": True}, "deduplicate is True; allowed: false with units"),
        (
            {"units": 3},
            r"out/plan\.json: holds a plan with other settings, or of a source that has changed",
        ),
        ({"units": 0}, r"out/plan\.json: exists without a manifest\.json; use another output folder"),
    ],
)
def test_an_unusable_plan_is_refused(source, settings, tmp_path, changes, message):
    plan(source, tmp_path / "out", settings)
    with pytest.raises(DataError, match=message):
        prepare(str(source), tmp_path / "out", **(settings | changes))


def test_a_refused_command_leaves_no_tokenizer_for_the_planned_units(source, settings, tmp_path):
    trained = settings | {"tokenizer_model": "", "vocab_size": 330}
    directory = plan(source, tmp_path / "out", trained)
    before = contents(directory)
    with pytest.raises(DataError, match=r"plan\.json: holds a plan with other settings"):
        plan(source, directory, settings)
    assert contents(directory) == before


def test_another_tokenizer_or_source_than_planned_is_refused(source, settings, tmp_path):
    directory = plan(source, tmp_path / "out", settings)
    model = directory / "tokenizer.model"
    contents_before = model.read_bytes()
    remove(model)
    with pytest.raises(DataError, match=r"tokenizer\.model: is not the tokenizer that plan\.json names"):
        run_unit(directory, 0)
    model.write_bytes(contents_before)
    (source / "0.jsonl.zst").write_bytes(b"")
    with pytest.raises(DataError, match=r"0\.jsonl\.zst: has 0 bytes, and had \d+ when the plan was made"):
        run_unit(directory, 0)


def test_units_have_similar_sizes(source, settings, tmp_path):
    plan_found = load_plan(plan(source, tmp_path / "out", settings))
    sizes = [sum(plan_found.open_unit(number).sizes) for number in range(UNITS)]
    total = sum(sizes)
    largest = max(file.bytes for file in plan_found.files)
    assert total == sum(file.bytes for file in plan_found.files)
    assert max(sizes) <= total / UNITS + largest
    assert min(sizes) > 0


def test_a_plan_records_the_commit_of_the_hub(source, settings, tmp_path, monkeypatch):
    files = {file.name: file.read_bytes() for file in source.iterdir()}
    with run_hub_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        commit = server.commit("org/texts", files)
        directory = plan("hf://datasets/org/texts", tmp_path / "out", settings)
        run_unit(directory, 0)
        server.commit("org/texts", {"0.jsonl": json_lines("other")})
        prepare("hf://datasets/org/texts", directory, **settings)
    manifest = load_manifest(directory)
    assert manifest.source_commit == commit
    assert manifest.sha256 == load_manifest(prepare(str(source), tmp_path / "disk", **settings)).sha256


def test_a_sample_by_hash_does_not_depend_on_order_or_division(make_texts):
    texts = [text * 20 for text in make_texts(300)]
    sample = sample_by_hash(texts, 50_000, 1)
    assert 40_000 < sum(len(passage.encode()) for passage in sample) <= 50_000
    shuffled = random.Random(0).sample(texts, len(texts)) + texts[:50]
    assert sample_by_hash(shuffled, 50_000, 1) == sample
    parts = [
        passage
        for start in range(0, 300, 60)
        for passage in sample_by_hash(texts[start : start + 60], 50_000, 1)
    ]
    assert sample_by_hash(parts, 50_000, 1) == sample
    assert sample_by_hash(texts, 50_000, 2) != sample
    # A fair draw has passages of all parts of the texts.
    numbers = sorted(int(passage.split()[1]) for passage in sample if passage.startswith("# "))
    assert numbers[0] < 60
    assert numbers[-1] > 240


@pytest.mark.slow
def test_workers_make_the_same_folder(source, expected, either, tmp_path):
    assert contents(prepare(str(source), tmp_path / "workers", **(either | {"workers": 2}))) == expected


def _sleep_unless_first(directory, number):
    """Fail in unit 0 as soon as another unit has begun; the others take a minute."""
    if number:
        (directory / f"begun-{number}").touch()
        time.sleep(60)
    while not list(directory.glob("begun-*")):
        time.sleep(0.01)
    raise DataError("unit 0 failed")


@pytest.mark.slow
def test_a_failed_unit_stops_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(units, "count_units", lambda directory: UNITS)
    monkeypatch.setattr(units, "run_unit", _sleep_unless_first)
    with pytest.raises(DataError, match=r"^unit 0 failed$"):
        units.run_locally(tmp_path, 2, progress=False)
    begun = max(path.stat().st_mtime for path in tmp_path.iterdir())
    assert time.time() - begun < 30


@pytest.mark.slow
@pytest.mark.usefixtures("enabled_interrupts")
@pytest.mark.parametrize(
    "sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda sent: sent.name
)
def test_no_worker_outlives_a_stopped_command(settings, tmp_path, make_texts, sent):
    (tmp_path / "source").mkdir()
    for number in range(40):
        (tmp_path / "source" / f"{number:02d}.jsonl").write_bytes(json_lines(*make_texts(300, seed=number)))
    output = tmp_path / "out"
    arguments = command(tmp_path / "source", output, settings | {"units": 40, "workers": 2})
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while not list(output.glob("unit-*.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(sent)
    _, errors = process.communicate(timeout=60)
    deadline = time.monotonic() + 20
    while any(is_running(child) for child in children):
        assert time.monotonic() < deadline, "workers outlived the command"
        time.sleep(0.01)
    assert len(list(output.glob("unit-*.json"))) < 40
    if sent == signal.SIGINT:
        assert process.returncode == 130, errors
        assert errors == "birdie_jax.prepare_data: stopped; the same command repeats its unfinished units\n"


# The commands of docs/prepare_text.md; Slurm runs the first one for each number of a job array.
_ARRAY = """
set -e
for SLURM_ARRAY_TASK_ID in 3 1 0 2 1; do
    "$PYTHON" -m birdie_jax.prepare_data --output="$OUTPUT" --unit="$SLURM_ARRAY_TASK_ID"
done
"$PYTHON" -m birdie_jax.prepare_data --output="$OUTPUT" --finish
"""


@pytest.mark.slow
@pytest.mark.parametrize("either", ["given"], indirect=True)
def test_the_commands_of_a_job_array_make_the_same_folder(source, expected, either, tmp_path):
    output = tmp_path / "out"
    flags = command(source, output, either)
    subprocess.run([*flags, "--runner=none"], check=True, capture_output=True, timeout=120)
    environment = os.environ | {"PYTHON": sys.executable, "OUTPUT": str(output)}
    subprocess.run(["bash", "-c", _ARRAY], check=True, cwd=REPOSITORY, env=environment, timeout=300)
    assert contents(output) == expected


def run_beam(packages, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "birdie_jax.text.beam_runner", *arguments],
        env=os.environ | {"PYTHONPATH": f"{packages}{os.pathsep}{REPOSITORY}"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_without_beam_the_runner_names_what_to_install(tmp_path):
    (tmp_path / "apache_beam.py").write_text("raise ModuleNotFoundError('no module of Beam')")
    done = run_beam(tmp_path, str(tmp_path), "--runner=FlinkRunner")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("birdie_jax.text.beam_runner: apache_beam: found no module of Beam; ")
    assert done.stderr.count("\n") == 1 and "python -m pip install apache-beam" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"),
    [("NoRunner", ""), ("no_such.Runner", " (No module named 'no_such')"), ("os.path", " ('module' obj")],
)
def test_an_unknown_beam_runner_is_one_line(source, settings, tmp_path, name, reason):
    if not (packages := os.environ.get("BIRDIE_BEAM", "")):
        pytest.skip("BIRDIE_BEAM is not set; tests/run.sh --all sets it")
    directory = plan(source, tmp_path / "out", settings)
    done = run_beam(packages, str(directory), f"--runner={name}")
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"birdie_jax.text.beam_runner: --runner: found {name!r}{reason}")
    assert "allowed: DataflowRunner, " in line and "Traceback" not in done.stderr


def test_workers_of_beam_get_an_absolute_folder(tmp_path, monkeypatch):
    """They can have another current folder."""
    given = []
    monkeypatch.setattr(beam_runner, "run_with_beam", lambda *both: given.append(both))
    monkeypatch.setattr(sys, "argv", ["beam_runner", "out", "--runner=DirectRunner"])
    monkeypatch.chdir(tmp_path)
    beam_runner.main()
    assert given == [(locate(tmp_path / "out"), ["--runner=DirectRunner"])]


@pytest.mark.slow
def test_beam_makes_the_same_folder(source, expected, either, tmp_path):
    packages = os.environ.get("BIRDIE_BEAM", "")
    if not packages:
        pytest.skip("BIRDIE_BEAM is not set; tests/run.sh --all sets it")
    directory = plan(source, tmp_path / "out", either)
    options = ["--runner=DirectRunner", "--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    done = run_beam(packages, str(directory), *options)
    assert done.returncode == 0, done.stderr[-3000:]
    assert contents(directory) == expected
