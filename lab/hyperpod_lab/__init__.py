# SPDX-License-Identifier: Apache-2.0
"""A HyperPod stand-in on one machine: a container per instance, real Slurm, a stand-in for the cluster agent."""
