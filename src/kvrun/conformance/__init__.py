"""The same checks for every engine, over HTTP and on what its daemon counted and logged."""
