"""Proxies resume, a failed proxy stops no other, and a folder belongs to one search. Trainings are fake."""

import json
from pathlib import Path

import pytest

from birdie_jax.config import parse_config, to_dict
from birdie_jax.config_flag import load_config
from birdie_jax.errors import ConfigError
from birdie_jax.metric_names import arm_metric
from birdie_jax.mixture_search.config_files import BaseConfig
from birdie_jax.mixture_search.folder import SearchFolder
from birdie_jax.mixture_search.proxies import ProxyError, read_losses, train_proxies
from birdie_jax.mixture_search.request import choose_numbers, make_design, parse_objective
from birdie_jax.objectives import mixture_from_arms

MICRO = str(Path(__file__).parents[1] / "micro_config.py")
MIXTURE = mixture_from_arms(
    {
        "short": {"objective": "copying", "max_length": 8},
        "long": {"objective": "copying", "max_length": 32},
        "text": {"objective": "causal_lm"},
    }
)
SCHEDULES = {number: f"0: copying={number + 1}, causal_lm=1" for number in range(3)}


def micro(**fields):
    config = load_config(f"{MICRO}:fixed")
    config.update_from_flattened_dict(fields)
    return parse_config(config)


class FakeTrainings:
    """A runner that writes the files of a training. `stops` has the status of proxies that end early."""

    def __init__(self, stops=()):
        self.stops = dict(stops)
        self.started = []

    def __call__(self, arguments, log):
        flags = dict(argument.removeprefix("--").split("=", 1) for argument in arguments)
        workdir = Path(flags["workdir"])
        number = int(workdir.name)
        self.started.append(number)
        workdir.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            print(f"start {flags['config']}\nended\n", file=file)
        if status := self.stops.pop(number, 0):
            (workdir / "summary.json").write_text(json.dumps({"completed": False}))
            return status
        values = {"short": 1.0 + number, "long": 3.0, "text": 5.0}
        lines = [
            {"step": step}
            | {arm_metric(arm, "validation_loss"): 10 - step + value for arm, value in values.items()}
            for step in (0, 10)
        ]
        (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (workdir / "summary.json").write_text(json.dumps({"completed": True}))
        return 0


@pytest.fixture
def folder(tmp_path):
    folder = SearchFolder(str(tmp_path / "search"))
    folder.claim(0, 1, to_dict(micro()))
    return folder


@pytest.fixture
def base():
    return BaseConfig(f"{MICRO}:fixed", load_config(f"{MICRO}:fixed"))


def test_finished_proxies_are_not_trained_again(folder, base):
    trainings = FakeTrainings()
    assert train_proxies(folder, base, SCHEDULES, MIXTURE, runner=trainings) == (3, [])
    assert train_proxies(folder, base, SCHEDULES, MIXTURE, runner=trainings) == (0, [])
    more = SCHEDULES | {3: "0: copying=1"}
    assert train_proxies(folder, base, more, MIXTURE, runner=trainings) == (1, [])
    assert trainings.started == [0, 1, 2, 3]
    assert read_losses(folder.workdir(2), MIXTURE) == {"copying": 3.0, "causal_lm": 5.0}


def test_a_stopped_proxy_resumes_and_the_others_train(folder, base, capsys):
    trainings = FakeTrainings({1: 143})
    assert train_proxies(folder, base, SCHEDULES, MIXTURE, runner=trainings) == (3, [1])
    assert f"proxy 1: failed with status 143: {folder.log(1)}: ended\n" in capsys.readouterr().err
    assert read_losses(folder.workdir(1), MIXTURE) is None
    assert train_proxies(folder, base, SCHEDULES, MIXTURE, runner=trainings) == (1, [])
    assert trainings.started == [0, 1, 2, 1]


def test_the_same_call_resumes_an_interrupted_search(folder, base):
    trainings = FakeTrainings()

    def interrupted(arguments, log):
        if "/001" in arguments[1]:
            raise KeyboardInterrupt
        return trainings(arguments, log)

    with pytest.raises(KeyboardInterrupt):
        train_proxies(folder, base, SCHEDULES, MIXTURE, runner=interrupted)
    assert train_proxies(folder, base, SCHEDULES, MIXTURE, runner=trainings) == (2, [])
    assert trainings.started == [0, 1, 2]


def test_each_proxy_uses_its_schedule_and_the_base(folder, base):
    config = load_config(f"{MICRO}:fixed")
    config.train.num_steps = 7
    config.init["from"] = "runs/a"
    config.objectives.arms = {"a": {"objective": "copying"}, "b": {"objective": "causal_lm"}}
    changed = BaseConfig(f"{MICRO}:fixed", config)
    assert set(changed.changes) == {"train.num_steps", "init.from", "objectives.arms"}
    train_proxies(folder, changed, SCHEDULES, MIXTURE, runner=FakeTrainings())
    written = load_config(str(folder.config(2)))
    expected = config.to_dict()
    expected["bandit"] |= {"policy": "staged", "stages": SCHEDULES[2]}
    assert written.to_dict() == expected
    parse_config(written)


def test_the_base_file_loads_from_any_folder(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(Path(MICRO).parent)
    base = BaseConfig("micro_config.py", load_config("micro_config.py"))
    base.write(folder.found, "Found.", "0: copying=1")
    monkeypatch.chdir(tmp_path)
    assert load_config(str(folder.found)).bandit.stages == "0: copying=1"
    assert BaseConfig("tiny", load_config("tiny")).name == "tiny"


def test_a_run_without_losses_is_refused(folder, base):
    train_proxies(folder, base, SCHEDULES, MIXTURE, runner=FakeTrainings())
    metrics = folder.workdir(0).metrics
    Path(metrics).write_text('{"step": 10, "loss": 2.0}\n')
    with pytest.raises(ProxyError, match=r"metrics.jsonl: found no validation loss of arm 'short'"):
        read_losses(folder.workdir(0), MIXTURE)


@pytest.fixture
def begun(folder, base):
    """The folder of a search with one trained proxy."""
    train_proxies(folder, base, {0: SCHEDULES[0]}, MIXTURE, runner=FakeTrainings())
    return folder


def test_a_search_without_steps_is_replaced(folder, base):
    # A refused training has no steps.
    failing = FakeTrainings({0: 2})
    assert train_proxies(folder, base, {0: SCHEDULES[0]}, MIXTURE, runner=failing) == (1, [0])
    folder.claim(1, 2, to_dict(micro(**{"train.num_steps": 6})))
    record = json.loads((folder.root / "search.json").read_text())
    assert (record["seed"], record["config"]["train"]["num_steps"]) == (1, 6)


def test_a_folder_refuses_another_search(begun):
    begun.claim(0, 1, to_dict(micro(**{"train.log_every_steps": 3})))
    with pytest.raises(
        ConfigError,
        match=r"holds another search; .*: config.train.num_steps: found 6; allowed: 24; "
        r"--seed: found 1; allowed: 0; --stages: found 2; allowed: 1$",
    ):
        begun.claim(1, 2, to_dict(micro(**{"train.num_steps": 6})))


def test_a_search_keeps_the_steps_of_its_proxies(begun):
    with pytest.raises(ConfigError, match=r"config.train.skip_batches: found '2:3'; allowed: ''$"):
        begun.claim(0, 1, to_dict(micro(**{"train.skip_batches": "2:3"})))


def test_proxies_on_different_texts_are_not_compared(begun, base):
    begun.claim(0, 1, to_dict(micro(**{"data.prepared": "moved"})))
    texts = {0: "a", 1: "a", 2: "b"}
    for number, text in texts.items():
        workdir = Path(begun.workdir(number).root)
        workdir.mkdir(exist_ok=True)
        (workdir / "text.json").write_text(json.dumps({"sha256": text, "place": f"/{text}"}))
    # Proxy 2 has not trained a step.
    begun.check_texts()
    assert train_proxies(begun, base, SCHEDULES, MIXTURE, runner=FakeTrainings()) == (2, [])
    with pytest.raises(ConfigError, match=r"different texts: \S*/000 on /a, \S*/002 on /b; allowed: one"):
        train_proxies(begun, base, SCHEDULES | {3: "0: copying=1"}, MIXTURE, runner=FakeTrainings())
    assert not Path(begun.workdir(3).root).exists()


def test_arms_are_one_field(begun):
    arms = {"a": {"objective": "copying"}}
    with pytest.raises(ConfigError, match=r"config.objectives.arms: found {'a': .*; allowed: {}$"):
        begun.claim(0, 1, to_dict(micro(**{"objectives.arms": arms})))


def test_a_newer_field_has_its_default_in_an_older_search(begun):
    path = begun.root / "search.json"
    record = json.loads(path.read_text())
    del record["config"]["optimizer"]["schedule"]
    record["config"]["optimizer"]["gone"] = 1
    path.write_text(json.dumps(record))
    begun.claim(0, 1, to_dict(micro()))
    with pytest.raises(ConfigError, match=r"optimizer.schedule: found 'linear'; allowed: 'cosine'$"):
        begun.claim(0, 1, to_dict(micro(**{"optimizer.schedule": "linear"})))


def test_a_run_folder_is_refused_for_a_search(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds a run; allowed: a folder of its own"):
        SearchFolder(str(tmp_path)).claim(0, 1, {})
    with pytest.raises(ConfigError, match=r"--workdir: found 'gs://a/b'; allowed: a folder"):
        SearchFolder("gs://a/b")
    with pytest.raises(
        ConfigError, match=r"--workdir: found '/at/12:30'; allowed: a folder without a colon"
    ):
        SearchFolder("/at/12:30")


def test_the_design_contains_the_classes_with_weights():
    arms = {
        "a": {"objective": "copying", "weight": 3.0},
        "b": {"objective": "causal_lm"},
        "c": {"objective": "prefix_lm", "weight": 0.0},
    }
    config = load_config(f"{MICRO}:fixed")
    config.objectives.arms = arms
    design, mixture = make_design(parse_config(config), 2, 5)
    assert (design.classes, design.own) == (("causal_lm", "copying"), (0.25, 0.75))
    assert (design.stages, design.seed) == (2, 5)
    # A class that no proxy trains on is measured, and counts if the objective names it.
    assert parse_objective(None, design, mixture).tolist() == [0.5, 0.5, 0.0]
    assert parse_objective("prefix_lm=3, copying=1", design, mixture).tolist() == [0.0, 0.25, 0.75]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bandit.policy": "birdie"}, "config.bandit.policy: found 'birdie'; allowed: fixed"),
        (
            {"objectives.mixture": "causal_lm"},
            "config.objectives: found one class with a weight, causal_lm",
        ),
        (
            {"bandit.every_steps": 100},
            "config.bandit.stages: found a stage from 0.5 to the next with none",
        ),
        (
            {"finetune.stages": {"a": {"task": "phonebook"}}},
            "config.finetune.stages: found stages; allowed: no",
        ),
    ],
)
def test_unsearchable_configs_are_refused(fields, message):
    with pytest.raises(ConfigError) as error:
        make_design(micro(**fields), 2, 0)
    assert message in str(error.value)


@pytest.mark.parametrize("text", ["", "copying", "copying=x", "copying=0", "copying=1; 0.5: copying=2"])
def test_an_invalid_objective_is_refused(text):
    design, mixture = make_design(micro(), 1, 0)
    with pytest.raises(ConfigError, match=r"--objective: found .*; allowed: classes with weights: "):
        parse_objective(text, design, mixture)


def test_an_objective_with_an_unknown_class_is_refused():
    design, mixture = make_design(micro(), 1, 0)
    with pytest.raises(ConfigError, match=r"--objective: found the class 'copyin'; allowed: copying, "):
        parse_objective("copyin=1", design, mixture)


@pytest.mark.parametrize(
    ("text", "expected"), [(None, range(8)), ("3", range(3, 4)), ("0:8", range(8)), ("6:7", range(6, 7))]
)
def test_choose_numbers_reads_a_number_or_a_range(text, expected):
    assert choose_numbers(text, 8) == expected


@pytest.mark.parametrize("text", ["", "8", "3:3", "5:2", "0:9", "-1", "a", "1:2:3", "1:"])
def test_invalid_numbers_are_refused(text):
    with pytest.raises(ConfigError, match=r"--only: found .*; allowed: .* of --proxies=8: 0 to 7"):
        choose_numbers(text, 8)


def test_the_record_contains_the_configuration(tmp_path):
    folder = SearchFolder(str(tmp_path))
    config = to_dict(micro())
    folder.claim(3, 1, config)
    folder.claim(3, 1, config)
    record = json.loads((tmp_path / "search.json").read_text())
    assert (record["seed"], record["config"]["batching"]["rows"]) == (3, 2)
