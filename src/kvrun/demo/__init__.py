"""The demo: a real model, two users, restarts, a damaged block, an erasure, a verified log."""
