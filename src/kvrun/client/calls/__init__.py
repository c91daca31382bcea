"""Every request of the client, as pure functions: what they take becomes the methods' parameters.

Names of parameters are the control plane's. What is None is not sent, so that its default counts.
"""
