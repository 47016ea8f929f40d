# SPDX-License-Identifier: Apache-2.0
"""The stand-in for the service and its agents on the nodes.

It works from the request with its own reading and imports nothing of the runner, whose work it is to be held against.
"""

from hyperpod_lab.agent.node import Hardware, Node

__all__ = ["Hardware", "Node"]
