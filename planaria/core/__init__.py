"""The pure part: values and functions, standard library only, no clock and no network."""
