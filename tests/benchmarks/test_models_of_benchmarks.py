"""Benchmarks name the models and the scale that exist, and compile one form of a step at a time."""

import argparse
import io
import json

from benchmarks import recorded_runs, train_step_cpu
from birdie_jax.models import language_model_names
from birdie_jax.models.registry import model_names


def test_every_language_model_is_recorded():
    of_tiny = {name for name, preset in recorded_runs.MODELS.items() if preset == "tiny"}
    assert of_tiny == set(language_model_names())
    assert set(recorded_runs.MODELS) <= set(model_names())


def test_an_encoder_has_the_configuration_of_the_study():
    for model in train_step_cpu.ENCODERS:
        given, make_batch = train_step_cpu.encoder(model)
        batch = make_batch(given.data.vocab_size)
        assert batch.tokens.shape == (given.batching.rows, given.batching.length)


class Worker:
    """A process that counts as compiling until its first line is read."""

    compiling = 0

    def __init__(self):
        assert Worker.compiling == 0, "another form still compiles"
        Worker.compiling += 1
        self.stdin, self.stdout, self._lines = io.StringIO(), self, 0

    def readline(self):
        self._lines += 1
        Worker.compiling -= self._lines == 1
        return json.dumps(2.0 if self._lines == 1 else [1.0, 1.0, 1.0])

    def wait(self):
        return 0


def test_forms_compile_one_after_the_other(monkeypatch):
    monkeypatch.setattr(train_step_cpu, "start", lambda *_: Worker())
    options = argparse.Namespace(forms=["now", "before"], steps=1, rounds=2)
    assert len(train_step_cpu.measure("tiny", options)) == 2
