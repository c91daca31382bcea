"""Measurements of kvrun against what it is built on, each reported with its goal."""
