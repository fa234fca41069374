"""The whole system on one machine, without an AWS account: emulator, nodes, training job, faults."""
