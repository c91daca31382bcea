"""The instance daemon: the one process on a box that holds keys, sealed blocks and the audit log."""
