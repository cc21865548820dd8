"""Commands about catalogs of others: what is mounted from them, published to them, and moved between."""
