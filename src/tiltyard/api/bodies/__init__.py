"""Request and response bodies: read within bounds, checked before they are decoded, encoded as they are sent."""
