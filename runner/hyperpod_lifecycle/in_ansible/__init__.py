# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything of the runner that imports Ansible. It runs in a process of its own; the rest of the package starts it."""
