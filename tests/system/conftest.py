# SPDX-License-Identifier: Apache-2.0
"""What only root can try. Without root that is an error, not a test less."""

from __future__ import annotations

import os

import pytest


def pytest_configure() -> None:
    if os.geteuid() != 0:
        raise pytest.UsageError("the tests in tests/system need root: make system")
