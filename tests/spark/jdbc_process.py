"""A process with a Spark of its own that reads a PostgreSQL table into a lake, in zones that `test_jdbc` chooses.

python -m tests.spark.jdbc_process ROOT ADDRESS JAR JVM_ZONE SESSION_ZONE
"""

from __future__ import annotations

import sys

import tiltyard
from tests.services.jvm import use_light_jvms


def main() -> None:
    use_light_jvms()
    root, address, jar, jvm_zone, session_zone = sys.argv[1:]
    conf = {
        "spark.jars": jar,
        "spark.driver.extraJavaOptions": f"-Duser.timezone={jvm_zone}",
        "spark.sql.session.timeZone": session_zone,
    }
    lake = tiltyard.connect(root, conf=conf, master="local[1]")
    lake.table("read").ingest(tiltyard.Jdbc(address, table="times", user="tilt"))


if __name__ == "__main__":
    main()
