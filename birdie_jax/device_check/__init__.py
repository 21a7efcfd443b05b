"""Whether attached devices do what is expected of them: kernels, rates, and a few steps of a run.

In:
    the run of a configuration, on the devices that are attached.
Out:
    `scans`      whether each implementation of the model's scan is right on a device, and how fast
    `choice`     the implementation that a run takes, kept in its workdir and in this machine's cache
    `rates`      products, copies, collectives, the scan and the host's work, each beside what is expected
    `steps`      a few train steps beside their plan
    `table`      all of it as text and as JSON
"""
