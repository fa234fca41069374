"""The node agent: one small process per node that sees trouble and says so. No torch."""
