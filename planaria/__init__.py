"""Planaria: a GPU training cluster that heals itself, on plain AWS."""

__version__ = "0.1.0"
