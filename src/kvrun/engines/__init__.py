"""Thin adapters: one folder an engine. They move bytes and name blocks; they know no keys."""
