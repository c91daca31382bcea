"""Helpers that several test packages share: real processes, not mocks."""
