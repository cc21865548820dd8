"""Drive one job under spark-submit (see `tiltyard.pipeline.driver.process`)."""

from __future__ import annotations

from tiltyard.pipeline.driver.process import main

if __name__ == "__main__":
    main()
