"""How long tensorstore, by which orbax reads and writes arrays, tries a request to a store again."""

from orbax.checkpoint._src.serialization import tensorstore_utils

# In all about a minute and a half; tensorstore's own 32 tries take 15, and the run would count as hung.
_RETRIES = {"max_retries": 8, "initial_delay": "1s", "max_delay": "16s"}


def limit_request_retries() -> None:
    """Let orbax give up a failing store well before `train.hung_seconds`, in this process from now on."""
    # orbax has no option for it; these are what every one of its contexts is made of.
    for context in (tensorstore_utils._BASE_TS_CONTEXT, tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT):
        context["gcs_request_retries"] = _RETRIES
