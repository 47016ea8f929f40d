# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Attributes that modules of this collection have in common."""

from __future__ import annotations


class ModuleDocFragment:
    """What the attributes mean; ``attributes.files`` is for modules that show how they change a file."""

    # Two literals that say check_mode each: ansible-test parses them and follows no expression.
    DOCUMENTATION = r"""
attributes:
  check_mode:
    description: Can run in C(check_mode) and return whether it would change something, without changing it.
    support: full
  diff_mode:
    description: Returns what it has changed, or would change, in diff mode.
    support: none
"""
    FILES = r"""
attributes:
  check_mode:
    description: Can run in C(check_mode) and return whether it would change something, without changing it.
    support: full
  diff_mode:
    description: Returns what it has changed, or would change, in diff mode.
    support: full
"""
