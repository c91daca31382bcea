"""What a running process tells those who operate it: logs, health, metrics and traces."""
