"""Request and response bodies: read within limits, checked before they are decoded, encoded as they are sent."""
