"""Calls of Thrift services: pooled and bounded in time, with TLS or Kerberos."""
