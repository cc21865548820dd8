"""One module for each kind of catalog that can be mounted, behind `MountedCatalog`."""
