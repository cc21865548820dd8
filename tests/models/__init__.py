"""The models of `models/`, checked by Spin: each promise holds, and each broken twin is refuted."""
