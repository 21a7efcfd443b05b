"""The names of the kinds of cases."""

KINDS = {
    "kill": "SIGKILL at any instant",
    "kill-saving": "SIGKILL while saving",
    "kill-restoring": "SIGKILL while restoring",
    "kill-preparing": "SIGKILL in preparation",
    "term": "SIGTERM at any instant",
    "term-saving": "SIGTERM while saving",
    "term-restoring": "SIGTERM while restoring",
    "term-preparing": "SIGTERM in preparation",
    "file": "file operations of a regression fail",
    "file-run": "file operations of a language model fail",
    "file-preparing": "file operations of a preparation fail",
    "flip": "a bit flips in a workdir",
    "flip-preparing": "a bit flips in text half prepared",
    "flip-text": "a bit flips in prepared text",
    "clock": "the clock jumps",
    "kill-one": "SIGKILL of one of two processes",
    "term-one": "SIGTERM of one of two processes",
    "bucket": "a bucket fails",
}
"""The kinds of cases by name, in words."""
