#!/bin/sh
# What the image consists of: an environment with the locked packages, each checked against its hash, and Tiltyard.
# Without Spark, which workers that run jobs of the pipeline add (docs/deploy.md). To be run where the sources are:
#     sh deploy/install_image.sh FOLDER
set -eu
target=$1
python3 -m venv "$target"
pip="$target/bin/python -m pip --disable-pip-version-check --quiet install"
# An entry of the lock begins at the left margin and goes on, indented, to the next one. PySpark comes as source only.
awk '/^[^ #]/ { wanted = !/^(pyspark|lancedb|bokeh-sampledata|wordllama)==/ } wanted' requirements.lock > "$target/wheels.lock"
$pip --require-hashes --no-deps --only-binary :all: -r "$target/wheels.lock"
$pip --no-deps --no-build-isolation --no-index .
rm "$target/wheels.lock"
"$target/bin/tiltyard" --version
