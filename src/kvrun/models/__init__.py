"""Model folders: the demo model, the tiny test model, fingerprints, context windows."""
