"""Launchers: start runs on this machine, on TPU slices, in GKE and under Slurm.

Every launcher builds argument vectors and passes them to `commands.Commands`, which prints and runs them.
In a dry run, it only prints them. No launcher imports the training system or JAX.
"""
