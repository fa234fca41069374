"""Adapters of the Scheduler port: Slurm, EKS, the sandbox's processes."""
