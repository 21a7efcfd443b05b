"""A workdir belongs to one configuration, even if fields were added or removed since."""

import json
import os
from pathlib import Path

import pytest

from birdie_jax.config import CheckpointConfig, Config, ObjectivesConfig, OptimizerConfig, to_dict
from birdie_jax.engine import Workdir
from birdie_jax.errors import ConfigError
from birdie_jax.saved_config import parse_saved_config, read_json
from birdie_jax.storage.metric_lines import has_begun
from birdie_jax.storage.workdir import differences, flat


def claim(folder, config=Config()):  # noqa: B008 - frozen
    Workdir(folder).claim(to_dict(config), to_dict(Config()))


def change(folder, edit):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    edit(config)
    path.write_text(json.dumps(config))


def test_claim_accepts_the_same_configuration_again(tmp_path):
    claim(tmp_path / "deep" / "run")
    # What does not change the run may differ.
    claim(tmp_path / "deep" / "run", Config(checkpoint=CheckpointConfig(every_steps=7)))
    written = json.loads((tmp_path / "deep" / "run" / "config.json").read_text())
    assert written["batching"]["rows"] == Config().batching.rows


def test_refuses_another_configuration_and_names_every_field(tmp_path):
    claim(tmp_path)
    other = Config(seed=3, optimizer=OptimizerConfig(learning_rate=2e-3))
    with pytest.raises(ConfigError) as error:
        claim(tmp_path, other)
    assert str(error.value) == (
        f"{tmp_path}: holds a run of another configuration; use another workdir, or its values: "
        "config.optimizer.learning_rate: the run has 0.001, the command has 0.002; "
        "config.seed: the run has 0, the command has 3 (docs/operate.md says what may change)"
    )
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 0


def test_a_run_that_has_not_begun_is_replaced(tmp_path, caplog):
    claim(tmp_path)
    workdir = Workdir(tmp_path)
    left = (workdir.tokenizer, workdir.text, workdir.arms, workdir.scan, workdir.remat)
    for path in left:
        path.write_text("{}")
    assert not has_begun(workdir)
    workdir.claim(to_dict(Config(seed=3)), to_dict(Config()), begun=False)
    assert (
        f"{tmp_path}: held a run of another configuration that ended before its first step; this run takes "
        "its place: config.seed: the run has 0, the command has 3"
    ) in caplog.text
    assert json.loads(workdir.config.read_text())["seed"] == 3
    assert not any(path.exists() for path in left)
    workdir.text.write_text("{}")
    caplog.clear()
    workdir.claim(to_dict(Config(seed=3)), to_dict(Config()), begun=False)
    assert not caplog.text and not workdir.text.exists()


@pytest.mark.parametrize(
    ("file", "contents", "begun"),
    [
        ("config.json", "{}", False),
        ("checkpoints/00000004.orbax-checkpoint-tmp/a", "", False),
        ("metrics.jsonl", "", False),
        # Validation before the first step.
        ("metrics.jsonl", '{"step": 0, "arm/a/validation_loss": 6.0}\n', False),
        ("metrics.jsonl", '{"step": 0, "loss": 6.0}\n{"step": 2, "loss": 6.0}\n', True),
        ("metrics.jsonl", "what cannot be read\n", True),
        ("metrics/00000000.jsonl", '{"continued_from": -1, "again": false}\n{"step": 0}\n', False),
        ("metrics/00000000.jsonl", '{"continued_from": -1, "again": false}\n{"step": 2}\n', True),
        ("checkpoints/00000004/a", "", True),
        ("damaged_checkpoints/00000004/a", "", True),
    ],
)
def test_a_run_has_begun_once_a_step_is_logged_or_saved(tmp_path, file, contents, begun):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(contents)
    assert has_begun(Workdir(tmp_path)) == begun


def test_a_field_that_is_newer_than_the_run_has_its_default(tmp_path, caplog):
    claim(tmp_path)
    change(tmp_path, lambda config: config["optimizer"].pop("clip_norm"))
    with pytest.raises(ConfigError, match=r"clip_norm: the run has 1\.0, the command has 2\.0"):
        claim(tmp_path, Config(optimizer=OptimizerConfig(clip_norm=2.0)))
    claim(tmp_path)
    assert "config.optimizer.clip_norm is newer than the run; it has its default, 1.0" in caplog.text
    assert json.loads((tmp_path / "config.json").read_text())["optimizer"]["clip_norm"] == 1.0


def test_a_removed_field_is_left_out(tmp_path, caplog):
    claim(tmp_path)
    change(tmp_path, lambda config: config["model"].update(colour="red"))
    claim(tmp_path)
    assert "unknown field config.model.colour; ignored" in caplog.text
    assert "colour" not in json.loads((tmp_path / "config.json").read_text())["model"]


NO_CONFIGURATIONS = {
    "{}": "found the fields []; missing: batching, data, model, optimizer, train",
    '{"evaluations": [], "differences": []}': "found the fields ['evaluations', 'differences']; missing: b",
    '{"data": {}, "model": {}, "batching": {}, "optimizer": {}, "train": 3}': "missing: train",
}


@pytest.mark.parametrize(("contents", "said"), NO_CONFIGURATIONS.items())
@pytest.mark.parametrize("begun", [True, False])
def test_json_that_is_no_configuration_is_kept(tmp_path, contents, said, begun):
    workdir = Workdir(tmp_path)
    workdir.config.write_text(contents)
    claims = (
        lambda: workdir.claim(to_dict(Config()), to_dict(Config()), begun=begun),
        lambda: parse_saved_config(json.loads(contents), workdir.config, importing=True),
    )
    for claim_it in claims:
        with pytest.raises(ConfigError) as refused:
            claim_it()
        assert str(refused.value).startswith(f"{workdir.config}: is no configuration of a run: ")
        assert said in str(refused.value)
    assert workdir.config.read_text() == contents


def test_a_field_that_a_configuration_has_twice_is_named(tmp_path):
    claim(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 0, "seed": 7'))
    for use in (lambda: claim(tmp_path), lambda: read_json(path, "a run")):
        with pytest.raises(ConfigError) as refused:
            use()
        assert str(refused.value) == f"{path}: cannot be used: has the field 'seed' twice; allowed: once"


@pytest.mark.parametrize("contents", ["{", "[]", "3", "null", '"a"', "[" * 100_000])
def test_damaged_files(tmp_path, contents):
    (tmp_path / "config.json").write_text(contents)
    with pytest.raises(ConfigError, match=r"config\.json: cannot be used: "):
        claim(tmp_path)
    (tmp_path / "text.json").write_text(contents)
    with pytest.raises(ConfigError, match=r"text\.json: cannot be used: "):
        Workdir(tmp_path).keep_text("ab12", "/data/one")
    with pytest.raises(ConfigError, match="cannot be used"):
        claim(tmp_path / "config.json" / "run")


@pytest.mark.parametrize("left", ["checkpoints/00000004", "damaged_checkpoints/00000004"])
def test_checkpoints_without_their_configuration_are_of_no_configuration(tmp_path, left):
    claim(tmp_path)
    (tmp_path / left).mkdir(parents=True)
    claim(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"config\.json: missing, but there are checkpoints"):
        claim(tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_a_run_refuses_other_text(tmp_path):
    workdir = Workdir(tmp_path)
    workdir.keep_text("ab12", "/data/one")
    workdir.keep_text("ab12", "/moved/to")
    with pytest.raises(ConfigError, match=r"text.json names /data/one \(identity ab12\); found /data/two"):
        workdir.keep_text("cd34", "/data/two")
    assert json.loads((tmp_path / "text.json").read_text()) == {"sha256": "ab12", "place": "/data/one"}


def test_text_is_not_recorded_beside_checkpoints(tmp_path):
    (tmp_path / "checkpoints" / "00000004").mkdir(parents=True)
    Workdir(tmp_path).keep_text("ab12", "/data/one")
    assert not (tmp_path / "text.json").exists()


PLACES = [name for name, kind in vars(Workdir).items() if isinstance(kind, property)]
FOLDERS = {"checkpoints", "damaged_checkpoints", "evaluations", "metrics_parts", "stacks", "tensorboard"}


def dangle(path):
    path.symlink_to(path.with_name("nowhere"))


@pytest.mark.parametrize("kind", ["file", "folder", "pipe", "dangling link"])
@pytest.mark.parametrize("name", PLACES)
def test_a_file_in_place_of_a_folder_is_named(tmp_path, name, kind):
    path = tmp_path / getattr(Workdir(tmp_path), name).name
    wanted = "folder" if name in FOLDERS else "file"
    make = {"file": Path.touch, "folder": Path.mkdir, "pipe": os.mkfifo, "dangling link": dangle}
    make[kind](path)
    if kind == wanted:
        Workdir(tmp_path).make()
    else:
        with pytest.raises(ConfigError, match=f"{path}: is no {wanted}; allowed: a {wanted}, or nothing"):
            Workdir(tmp_path).make()


def test_a_folder_too_deep_for_recursion_is_refused(tmp_path, monkeypatch):
    """Found by benchmarks/fuzz.py."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be used: .*File name too long"):
        Workdir("x/" * 3000).make()
    assert not list(tmp_path.iterdir())


def test_dotted_names_and_differences():
    one = flat({"a": {"b": 1, "c": {}}, "d": [1]})
    assert one == {"a.b": 1, "a.c": {}, "d": [1]}
    assert differences(one, one | {"a.b": 2, "e": 3}) == [("a.b", 1, 2), ("e", None, 3)]


def test_custom_arms_are_one_field(tmp_path):
    arms = {"a": {"objective": "copying", "weight": 1.0}, "b": {"objective": "causal_lm"}}
    own = Config(objectives=ObjectivesConfig(arms=arms))
    claim(tmp_path, own)
    claim(tmp_path, own)
    for fewer in ({}, {"a": arms["a"]}, {**arms, "a": {"objective": "copying"}}):
        with pytest.raises(ConfigError, match=r"config\.objectives\.arms: the run has \{'a'"):
            claim(tmp_path, Config(objectives=ObjectivesConfig(arms=fewer)))
