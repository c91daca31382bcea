"""The isolation self-test: canary users try to reach each other's cache."""
