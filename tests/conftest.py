# SPDX-License-Identifier: Apache-2.0
"""What holds for every test, however the tests were started."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Signals set aside by `nohup` or a shell's `&` reach what tests start: the runner leaves such a signal aside."""
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
