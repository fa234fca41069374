"""The fault campaign on the emulator: a sandbox whose Lambdas are wrapped, cases that run side by side."""
