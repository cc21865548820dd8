"""What holds for all tests."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# The same examples in each run: what fails here fails there, and a suite that was green does not find by chance what
# it never looked for. `HYPOTHESIS_PROFILE=default` looks further; how long an example may take is the machine's affair.
settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

# By this signal `.ci/run` ends a run that takes too long, and pytest tells what has failed so far. Whatever a shell
# starts in the background ignores it, and so would all of its children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
