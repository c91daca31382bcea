"""Erasure: plan, run to the end whatever happens, and a certificate that others can check."""
