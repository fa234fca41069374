"""What programs write to colour or move a terminal's text."""

import re

SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|\x9b[0-?]*[ -/]*[@-~]"
)
"""One escape sequence (ECMA-48): CSI, OSC with its end, or a single character after ESC."""
