# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules of the runner that import Ansible. They run in a separate process."""
