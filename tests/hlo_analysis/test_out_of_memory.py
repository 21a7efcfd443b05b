"""Out-of-memory messages of compilers."""

import pytest

from hlo_analysis import OutOfMemory, parse_out_of_memory

MESSAGES = {
    "Ran out of memory in memory space hbm. Used 24.3G of 15.75G hbm. Exceeded": (24.3, 15.75),
    "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for "
    "HLO temporaries (384.00G) exceeds available HBM (30.75G). HLO module: jit_step.": (384.0, 30.75),
}


@pytest.mark.parametrize("message", MESSAGES)
def test_out_of_memory_messages_give_bytes(message):
    needed, available = MESSAGES[message]
    assert parse_out_of_memory(message) == OutOfMemory(needed * 2**30, available * 2**30)


def test_an_unrelated_message_gives_none():
    assert parse_out_of_memory("INTERNAL: 12.3G of nothing") is None
