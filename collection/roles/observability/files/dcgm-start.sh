#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Starts the DCGM exporter with the first set of metrics that it supports: some versions exit immediately if the GPU or its
# driver has no profiling. Usage: dcgm-start.sh SET... -- PROGRAM ARGUMENT...
sets=
while [ "$1" != -- ]; do
    sets="$sets $1"
    shift
done
shift
for set in $sets; do
    begin=$(date +%s)
    "$@" --collectors "$set"
    status=$?
    # An exporter that ran for a while has exited for another reason; systemd restarts it.
    [ $(($(date +%s) - begin)) -lt 30 ] || break
    echo "the exporter exited with $status when started with $set" >&2
done
exit "$status"
