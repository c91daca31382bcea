"""The adapter for llama.cpp: a server in front of it that leases its slots and keeps their states.

``docs/spec/slot-states.md`` describes what is sealed; ADR 0021 why it is done with slots.
"""
