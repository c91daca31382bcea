"""kvrun: governed inference, with a KV cache that is sealed, isolated, erasable and audited."""

__version__ = "0.1.0"
