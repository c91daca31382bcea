"""Migrations of the control plane's database, run by ``kvrun.state.upgrade``."""
