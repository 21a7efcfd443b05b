"""Experiments on what models learn: a package or module each, on the runner `studies.runner`.

`studies.learning` trains in its own loop.
"""
