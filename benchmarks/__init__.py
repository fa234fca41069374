"""Each module runs as `python -m benchmarks.NAME` and prints one JSON object as the last line of stdout."""
