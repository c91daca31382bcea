"""Signed statements that are no certificates: evaluations, results of self-tests."""
