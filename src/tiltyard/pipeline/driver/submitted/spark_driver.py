"""The file that spark-submit is given: it drives one job (see `tiltyard.pipeline.driver.process`)."""

from __future__ import annotations

from tiltyard.pipeline.driver.process import main

if __name__ == "__main__":
    main()
