# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The option of modules that talk to slurmdbd's database."""

from __future__ import annotations


class ModuleDocFragment:
    """How the database server is reached; C(SERVER) in module_utils/mariadb.py."""

    DOCUMENTATION = r"""
options:
  server:
    description: How the database server is reached, by a socket of this node or over TCP.
    type: dict
    required: true
    suboptions:
      socket:
        description: Socket of a server on this node, where the module's user is root.
        type: path
      host:
        description: Name or address of the server. It needs O(server.user) and O(server.password_file).
        type: str
      port:
        description: TCP port of the server.
        type: int
        default: 3306
      user:
        description: The account.
        type: str
      password_file:
        description: File with the account's password, readable by root only.
        type: path
      tls:
        description: Use TLS, and verify the server's certificate.
        type: bool
        default: true
      ca:
        description: Certificate authorities of the server; the system's own if absent.
        type: path
"""
