"""Benchmarks name the scale of a study that exists."""

from benchmarks import train_step_cpu


def test_an_encoder_has_the_configuration_of_the_study():
    for model in train_step_cpu.ENCODERS:
        given, make_batch = train_step_cpu.encoder(model)
        batch = make_batch(given.data.vocab_size)
        assert batch.tokens.shape == (given.batching.rows, given.batching.length)
