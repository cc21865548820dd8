"""As in torch: the package of `data`."""
