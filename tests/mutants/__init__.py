"""Faults that are planted on purpose, to see whether a test notices: `make mutants`."""
