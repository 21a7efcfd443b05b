"""`birdie VERB` runs the module of the verb and imports no other; presets need no checkout."""

import re
import runpy
import subprocess
import sys

import pytest

import birdie_jax
from birdie_jax.__main__ import VERBS, main
from birdie_jax.config_flag import load_config, preset_files
from birdie_jax.errors import ConfigError
from tests.pages.page_commands import REPOSITORY
from tests.pages.verbs import REQUIRED


@pytest.fixture
def run(monkeypatch, capsys):
    """Run `birdie` with these arguments; return its exit status, standard output and standard error."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["birdie", *arguments])
        status = 0
        try:
            main()
        except SystemExit as end:
            status = end.code
        return (status, *capsys.readouterr())

    return run


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_runs_its_module_with_its_arguments(run, verb, monkeypatch):
    ran = []
    monkeypatch.setattr(runpy, "run_module", lambda name, **how: ran.append((name, how, sys.argv[1:])))
    assert run(verb, "--help", "train") == (0, "", "")
    [(name, how, arguments)] = ran
    assert name.removeprefix("birdie_jax.") == verb and arguments == ["--help", "train"]
    assert how == {"run_name": "__main__", "alter_sys": True}


def test_the_console_command_has_every_verb():
    modules = {f"launch.{name}" for name in ("local", "slurm", "tpu_pod", "gke_jobset")}
    assert {*VERBS} == {*REQUIRED, *modules, "lm_eval"}


def test_help_names_every_verb_and_its_purpose(run):
    status, output, errors = run("--help")
    assert (status, errors) == (0, "")
    for verb in VERBS:
        assert re.search(rf"^  {re.escape(verb)} +[A-Z].{{8}}", output, re.MULTILINE), verb
    assert "python -m" not in output


def test_version(run):
    assert run("--version") == (0, f"birdie-jax {birdie_jax.__version__}\n", "")


@pytest.mark.parametrize(("arguments", "found"), [((), "no verb"), (("trian", "x"), "'trian'")])
def test_an_unknown_verb_is_refused_in_one_line(run, arguments, found):
    nearest = ["train"] if "trian" in arguments else []
    allowed = ", ".join(dict.fromkeys([*nearest, *VERBS, "--help", "--version"]))
    assert run(*arguments) == (2, "", f"birdie: found {found}; allowed: {allowed}\n")


@pytest.mark.parametrize("preset", sorted(path.stem for path in (REPOSITORY / "configs").glob("*.py")))
def test_a_preset_is_loaded_by_its_name_from_any_folder(preset, tmp_path, monkeypatch):
    by_path = load_config(str(REPOSITORY / "configs" / f"{preset}.py"))
    monkeypatch.chdir(tmp_path)
    assert load_config(preset).to_dict() == by_path.to_dict()


def test_a_preset_accepts_a_variant_and_a_file_has_precedence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config("birdie_1_4b:gated_ssm").model.name == "gated_ssm"
    (tmp_path / "tiny").write_text((REPOSITORY / "configs/birdie_110m.py").read_text())
    assert load_config("tiny").model.layers == load_config("birdie_110m").model.layers


def test_an_unknown_preset_is_refused_with_all_presets_nearest_first():
    with pytest.raises(
        ConfigError, match=r"^--config=birdie_1b: found no file; .*, or a preset: "
    ) as error:
        load_config("birdie_1b")
    listed = str(error.value).rpartition("or a preset: ")[2].split(", ")
    assert listed[0] == "birdie_1_4b" and sorted(listed) == sorted(preset_files())


@pytest.mark.slow
def test_a_verb_imports_no_other():
    program = (
        "import sys; sys.argv = ['birdie', 'report', '--help']\n"
        "from birdie_jax.__main__ import main\n"
        "try: main()\n"
        "finally: print([one for one in sys.modules if one in ('jax', 'birdie_jax.train', 'launch')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]" and "--workdir" in done.stdout, done.stderr
