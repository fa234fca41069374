"""Checkpoint steps on a file system: judged, sealed with a manifest, verified, removed. Nothing here needs
torch."""
