"""Models with another scan in place of their own, for comparison."""

import contextlib
import importlib
from collections.abc import Iterator
from unittest import mock

# The packages have functions of the same names.
_gated_scan = importlib.import_module("pallas_kernels.gated_scan.gated_scan")

SCANS = {
    "product": "no recurrence: a product of the arrays that the scan would read",
    "gated_scan": "the kernel that has the gates in it",
    "linear_scan": "the kernel of the recurrence, the gates beside it",
    "prefix": "the parallel prefix, as jax.lax.associative_scan has it",
}


def product(a, x, **options):
    """Replace a scan with a function of the same arguments and results, without a recurrence."""
    return a * x


@contextlib.contextmanager
def scan_replaced(scan: str) -> Iterator[str]:
    """Make models traced in this context use one of `SCANS`, and yield their `scan_implementation`."""
    with contextlib.ExitStack() as replaced:
        if scan == "product":
            for operation in ("linear_scan", "bidirectional_scan"):
                replaced.enter_context(mock.patch.object(_gated_scan, operation, product))
        if scan == "linear_scan":
            replaced.enter_context(mock.patch.object(_gated_scan.tpu, "suits", lambda *shape: False))
        yield "xla" if scan in ("product", "prefix") else ""
