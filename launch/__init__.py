"""Starting runs: on this machine, on TPU slices, in GKE and under Slurm.

Every launcher builds argument vectors and hands them to `commands.Commands`, which prints them as they are
run, or, in a dry run, instead of running them. Nothing here imports the training system or JAX.
"""
