"""One file, one function: parse, plan, act, record."""
