"""The control plane's HTTP interface: authentication, routes, problem responses."""
