"""The adapter for SGLang."""
