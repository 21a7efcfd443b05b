"""Checks of attached devices against expectations: kernels, rates, and a few steps of a run.

In:
    the run of a configuration, on the attached devices.
Out:
    `scans`      the correctness and speed of each implementation of the model's scan on a device
    `choice`     the implementation that a run uses, saved in its workdir and in this machine's cache
    `rates`      products, copies, collectives, the scan and the host's work, with expected figures
    `steps`      a few train steps, compared with their plan
    `table`      all results as text and as JSON
"""
