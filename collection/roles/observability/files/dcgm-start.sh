#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Starts the DCGM exporter with the first set of metrics that it can serve: where a GPU or its driver has no profiling,
# some versions end at once. usage: dcgm-start.sh SET... -- PROGRAM ARGUMENT...
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
    # One that has served for a while ended for another reason; systemd starts it again.
    [ $(($(date +%s) - begin)) -lt 30 ] || break
    echo "the exporter ended with $status when started with $set" >&2
done
exit "$status"
