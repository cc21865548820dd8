"""Copy many tables at once, as `tiltyard import-catalog --copy --spark` does."""
