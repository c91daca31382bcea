"""The control plane: collects audit logs, asks witnesses, keeps what was collected."""
