"""Object storage: a local folder or a bucket, created-only where asked."""
