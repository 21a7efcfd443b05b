"""Experiments on what models learn. Each is a package or a module that uses the runner `studies.runner`.

The exception is `studies.learning`, which trains in its own loop.
"""
