"""The instance daemon: the one process of a box that holds keys, sealed blocks and the log."""
