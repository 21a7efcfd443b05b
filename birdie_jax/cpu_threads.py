"""Enough threads for several CPU devices in one process."""

import os
import re

_THREADS = "PJRT_NPROC"
_DEVICES = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def start_enough_threads() -> None:
    """Let XLA start two threads for each of several CPU devices, unless PJRT_NPROC is set.

    The number of devices is that of XLA_FLAGS or JAX_NUM_CPU_DEVICES.

    XLA starts one thread for each core and at least one for each device. A device that waits in a
    collective keeps its thread, and so does one that starts the next program. If together they keep all
    threads, the last device never reaches the collective, and XLA ends the process after a minute.

    Call it before the first use of JAX's devices.
    """
    given = _DEVICES.findall(os.environ.get("XLA_FLAGS", ""))
    if (number := os.environ.get("JAX_NUM_CPU_DEVICES", "")).isdecimal():
        given.append(number)
    devices = max(map(int, given), default=1)
    if devices > 1 and _THREADS not in os.environ:
        os.environ[_THREADS] = str(max(2 * devices, os.cpu_count() or 1))
