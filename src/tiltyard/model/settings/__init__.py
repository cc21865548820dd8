"""Groups of settings with rules of their own: OpenID providers, storages, bounds of Spark's properties."""
