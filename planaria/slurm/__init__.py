"""What runs on Slurm's head node: one command per request of the Scheduler port, `python -m planaria.slurm`.

Reading and writing for one request are one command, so that nothing stands between the look and the deed but
Slurm itself. Standard library and planaria.core only.
"""
