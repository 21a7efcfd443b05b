"""A source must not change during a preparation or between two starts; an error names the change."""

import json
import os
import re
import shutil
import time

import pytest

from birdie_jax.errors import DataError
from birdie_jax.text import documents as documents_module
from birdie_jax.text import load_manifest, open_source, prepare
from birdie_jax.text.cache import cached_folder
from birdie_jax.text.source_record import SOURCE_RECORD_NAME
from tests.text.prepared_folders import COMPRESS, contents, json_lines, parquet, read_manifest

FORMATS = [".txt", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"]


def _write(path, texts):
    compress = COMPRESS.get(path.suffix, bytes)
    whole = {".txt": lambda: "\n".join(texts).encode(), ".parquet": lambda: parquet(texts)}
    path.write_bytes(whole.get(path.suffix, lambda: compress(json_lines(*texts)))())


def _truncate(path, contents):
    os.truncate(path, len(contents) // 2)


def _empty(path, contents):
    os.truncate(path, 0)


def _append(path, contents):
    with path.open("ab") as file:
        file.write(contents)


def _replace(path, contents):
    other = path.with_name("other")
    other.write_bytes(contents)
    os.replace(other, path)


def _rewrite(path, contents):
    """Write other contents of the same size and restore the times; only the change time differs."""
    status = path.stat()
    path.write_bytes(contents[:-2] + b"\n\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == len(contents)


def _remove(path, contents):
    path.unlink()


def _turn_into_pipe(path, contents):
    path.unlink()
    os.mkfifo(path)


WHILE_READ = [_truncate, _empty, _append, _replace, _rewrite]
CHANGES = [*WHILE_READ, _remove, _turn_into_pipe]


def _wait_for_another_time():
    # File times have a resolution of up to 10 ms.
    time.sleep(0.02)


@pytest.fixture
def source(tmp_path, make_texts, request):
    """A folder of two files with many documents; the second has the requested suffix."""
    folder = tmp_path / "source"
    folder.mkdir()
    _write(folder / "a.jsonl", make_texts(3))
    path = folder / f"b{request.param}"
    _write(path, make_texts(300, words=300, seed=1))
    _wait_for_another_time()
    return path


@pytest.mark.parametrize("source", FORMATS, indirect=True)
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_changed_before_reading_is_refused(source, change):
    documents = iter(open_source(str(source.parent)).documents())
    next(documents)
    change(source, source.read_bytes())
    with pytest.raises(DataError, match=re.escape(f"{source}: ")) as caught:
        list(documents)
    assert re.search(
        "changed while the source was read|is a named pipe|cannot be read: No such", str(caught.value)
    )


@pytest.mark.parametrize("source", FORMATS, indirect=True)
@pytest.mark.parametrize("change", WHILE_READ)
def test_a_file_changed_during_reading_is_refused(source, change, monkeypatch):
    monkeypatch.setattr(documents_module, "TEXT_PART_BYTES", 4096)
    documents = iter(open_source(str(source.parent)).documents())
    for document in documents:
        if document.file == source:
            break
    change(source, source.read_bytes())
    with pytest.raises(DataError, match=re.escape(f"{source}: changed while the source was read: ")):
        list(documents)


@pytest.mark.parametrize("source", [".jsonl"], indirect=True)
@pytest.mark.parametrize("change", WHILE_READ)
def test_a_preparation_of_a_changing_file_never_completes(source, change, run, monkeypatch):
    from birdie_jax.text import shard_pipeline

    group = shard_pipeline.read_blocks

    def changing(documents):
        for number, block in enumerate(group(documents)):
            if number == 1:
                change(source, source.read_bytes())
            yield block

    monkeypatch.setattr(shard_pipeline, "_BLOCK_DOCUMENTS", 16)
    monkeypatch.setattr(shard_pipeline, "read_blocks", changing)
    with pytest.raises(DataError, match=re.escape(f"{source}: changed while the source was read: ")):
        run(source.parent, source.parent.parent / "out", workers=int(change is _append))
    assert not load_manifest(source.parent.parent / "out").complete


def _stop_after(monkeypatch, file):
    """Stop a preparation, as if killed, when a shard with part of `file` is finished."""
    from birdie_jax.text.source_record import SourceRecord

    save = SourceRecord.save

    def stopping(self, count, write):
        if count and self.files[count - 1].path == os.path.realpath(file):
            self.stopping = getattr(self, "stopping", 0) + 1
            if self.stopping == 3:
                raise KeyboardInterrupt
        return save(self, count, write)

    monkeypatch.setattr(SourceRecord, "save", stopping)


@pytest.fixture
def stopped(tmp_path, make_texts, run):
    """The files of a source whose preparation stopped in the second file, and the output folder."""
    folder = tmp_path / "source"
    folder.mkdir()
    paths = [folder / name for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl")]
    for number, path in enumerate(paths):
        _write(path, make_texts(150, seed=number))
    _wait_for_another_time()
    with pytest.MonkeyPatch.context() as patch:
        _stop_after(patch, paths[1])
        with pytest.raises(KeyboardInterrupt):
            run(folder, tmp_path / "out")
    manifest = load_manifest(tmp_path / "out")
    assert manifest.cursor.file == 1
    assert manifest.cursor.document > 0
    return paths, tmp_path / "out"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("complete", [False, True])
def test_resuming_with_an_edited_source_names_the_file(stopped, run, number, change, complete):
    paths, output = stopped
    if complete:
        run(paths[0].parent, output)
    # Replacing a file with the same contents is not an edit.
    text = paths[number].read_bytes()
    change(paths[number], text + b" \n" if change is _replace else text)
    with pytest.raises(DataError) as caught:
        run(paths[0].parent, output)
    named = paths[number + 1] if change is _remove else paths[number]
    assert str(caught.value).startswith(f"{named}: ")
    assert "has changed since this preparation read it" in str(caught.value) or "pipe" in str(caught.value)


@pytest.mark.parametrize("change", [_append, _replace])
def test_unread_files_may_change(stopped, run, tmp_path, change):
    paths, output = stopped
    change(paths[2], json_lines(*["the seven rivers"] * 20))
    run(paths[0].parent, output)
    fresh = run(paths[0].parent, tmp_path / "fresh")
    assert load_manifest(output) == load_manifest(fresh)


@pytest.mark.parametrize("complete", [False, True])
def test_a_copied_source_is_recognised_by_its_contents(stopped, run, tmp_path, complete, monkeypatch):
    """A copy on another machine: the same names below another folder, with other times."""
    paths, output = stopped
    if complete:
        run(paths[0].parent, output)
    elsewhere = tmp_path / "other machine"
    shutil.copytree(paths[0].parent, elsewhere / "source")
    monkeypatch.chdir(elsewhere)
    path = output / "manifest.json"
    manifest = read_manifest(output)
    manifest["settings"]["source"] = "source"
    path.write_text(json.dumps(manifest))
    run("source", output)
    assert load_manifest(output).complete
    assert load_manifest(output).sha256 == load_manifest(run("source", tmp_path / "fresh")).sha256


def test_a_moved_or_copied_output_resumes(stopped, run, tmp_path):
    paths, output = stopped
    moved = shutil.copytree(output, tmp_path / "moved")
    shutil.rmtree(output)
    run(paths[0].parent, moved)
    fresh = run(paths[0].parent, tmp_path / "fresh")
    assert contents(moved) == contents(fresh)


def test_unchanged_files_are_not_read_again(stopped, run, monkeypatch):
    from birdie_jax.text import sources

    paths, output = stopped
    run(paths[0].parent, output)
    monkeypatch.setattr(sources, "hash_file", None)
    run(paths[0].parent, output)


def test_an_added_or_removed_file_is_named(stopped, run):
    paths, output = stopped
    run(paths[0].parent, output)
    (paths[0].parent / "d.jsonl").write_text("")
    with pytest.raises(DataError, match=r"d\.jsonl: was added to .*source since this preparation ended"):
        run(paths[0].parent, output)
    (paths[0].parent / "d.jsonl").unlink()
    paths[2].unlink()
    with pytest.raises(DataError, match=r"c\.jsonl: was read by this preparation, and .* no longer has it"):
        run(paths[0].parent, output)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "cannot be read: No such file"),
        (lambda path: path.write_bytes(b""), "has 0 lines; 2 are expected"),
        (lambda path: path.write_bytes(b"{\n{\n"), "line 1: is not JSON"),
        (lambda path: path.write_bytes(b"{}\n{}\n"), r"line 1\.path: missing"),
        (
            lambda path: path.write_bytes(path.read_bytes().replace(b'56": "', b'56": "0')),
            "does not belong",
        ),
    ],
)
def test_a_damaged_record_is_named(stopped, run, damage, message):
    paths, output = stopped
    damage(output / SOURCE_RECORD_NAME)
    with pytest.raises(DataError, match=rf"{SOURCE_RECORD_NAME}: {message}"):
        run(paths[0].parent, output)


def test_a_torn_last_line_of_the_record_is_replaced(stopped, run, tmp_path):
    paths, output = stopped
    with (output / SOURCE_RECORD_NAME).open("ab") as file:
        file.write(b'{"path": "/so')
    run(paths[0].parent, output)
    fresh = run(paths[0].parent, tmp_path / "fresh")
    assert (output / SOURCE_RECORD_NAME).read_bytes() == (fresh / SOURCE_RECORD_NAME).read_bytes()


def test_a_preparation_of_version_1_does_not_resume(stopped, run):
    paths, output = stopped
    manifest = read_manifest(output) | {"format_version": 1}
    (output / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(
        DataError, match=r"manifest\.json: was written by an earlier prepare_data, which kept"
    ):
        run(paths[0].parent, output)


def _cached(root, source):
    return cached_folder(root, str(source), tokenizer_model="", text_field="text", vocab_size=300)


@pytest.mark.parametrize("change", [_truncate, _append, _replace, _rewrite])
@pytest.mark.parametrize("pattern", ["", "text.txt", "*.txt"])
def test_cached_text_of_an_edited_source_is_not_used(tmp_path, change, pattern):
    path = tmp_path / "data" / "text.txt"
    path.parent.mkdir()
    path.write_text("text\n\n\n")
    before = _cached(tmp_path, path.parent / pattern)
    assert _cached(tmp_path, path.parent / pattern) == before
    _wait_for_another_time()
    change(path, b"tend\n\n\n")
    assert _cached(tmp_path, path.parent / pattern) != before


def test_cached_text_depends_on_the_resolved_path(tmp_path, monkeypatch):
    for place in ("A", "B"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "text.txt").write_text("text")
    link = tmp_path / "current"
    found = []
    for place in ("A", "B", "A"):
        monkeypatch.chdir(tmp_path / place)
        link.unlink(missing_ok=True)
        link.symlink_to(place)
        found.append((_cached(tmp_path, "text.txt"), _cached(tmp_path, link)))
    assert found[0] == found[2]
    assert all(one != other for one, other in zip(*found[:2], strict=True))
    library = _cached(tmp_path, "stdlib")
    (tmp_path / "A/ast.py").write_text("pass")
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path / "A")})
    assert _cached(tmp_path, "stdlib") != library


def test_a_source_is_cached_separately_under_each_name(tmp_path, monkeypatch, model_path):
    """A preparation with one name rejects another name, which would stop training."""
    (tmp_path / "data").mkdir()
    for number in range(16):
        (tmp_path / "data" / f"{number}.txt").write_text(f"text {number} " * 50)
    monkeypatch.chdir(tmp_path)
    settings = {"tokenizer_model": str(model_path), "text_field": "text", "validation_fraction": 0.5}
    for name in ("data", str(tmp_path / "data"), "./data"):
        folder = cached_folder(tmp_path / "cache", name, **settings)
        prepare(name, folder, workers=0, progress=False, **settings)
    assert len(list((tmp_path / "cache").iterdir())) == 3
