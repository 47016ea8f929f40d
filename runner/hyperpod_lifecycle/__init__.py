# SPDX-License-Identifier: Apache-2.0
"""Lifecycle software for Slurm clusters on SageMaker HyperPod."""

__version__ = "0.1.0"
