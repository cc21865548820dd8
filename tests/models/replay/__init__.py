"""Traces of the models, replayed on real servers step by step; histories of servers, looked for in the models."""
