import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdie_jax.text.token_record import choose_dtype, decode_record, encode_record, split_evenly


@given(tokens=st.lists(st.integers(0, 65_535), max_size=50), ends=st.booleans())
@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_a_record_round_trips(dtype, tokens, ends):
    record = decode_record(encode_record(np.array(tokens, np.int32), ends, dtype), dtype)
    assert record.tokens.tolist() == tokens
    assert record.tokens.dtype == np.int32
    assert record.ends_document is ends


def test_bytes_are_as_documented():
    payload = encode_record(np.array([256, 515], np.int32), True, "uint16")
    assert payload == bytes([2, 0, 0, 0, 1, 2, 0, 0, 0x00, 0x01, 0x03, 0x02])

    assert (choose_dtype(65_536), choose_dtype(65_664)) == ("uint16", "uint32")


def test_a_wrong_length_or_type_is_refused():
    with pytest.raises(ValueError, match="7 bytes, fewer than a header's 8"):
        decode_record(b"1234567", "uint16")
    payload = encode_record(np.array([1, 2, 3], np.int32), True, "uint16")
    with pytest.raises(ValueError, match="12 bytes with a header of 3 tokens of 2 bytes"):
        decode_record(payload[:-2], "uint16")
    with pytest.raises(ValueError, match="8 \\+ tokens x 4 are expected"):
        decode_record(payload, "uint32")


@given(length=st.integers(1, 500), record_tokens=st.integers(1, 100))
def test_split_gives_near_equal_parts(length, record_tokens):
    tokens = np.arange(length, dtype=np.int32)
    parts = split_evenly(tokens, record_tokens)
    sizes = [len(part) for part in parts]
    assert len(parts) == -(-length // record_tokens)
    assert max(sizes) <= record_tokens
    assert max(sizes) - min(sizes) <= 1
    assert np.concatenate(parts).tolist() == tokens.tolist()
