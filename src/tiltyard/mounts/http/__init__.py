"""Requests to catalogs over HTTP: pooled and bounded in time, with tokens or signatures."""
