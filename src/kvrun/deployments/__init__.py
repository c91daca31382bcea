"""Deployments: many of them over one control plane, each a process tree in a folder of its own."""
