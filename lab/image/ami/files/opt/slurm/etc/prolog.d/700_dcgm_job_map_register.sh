#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Like the image's own: which job has which GPU, for dcgm-exporter. It never fails a job.
folder=/run/slurm/dcgm-job-mapping
[ -d "$folder" ] || exit 0
(
    flock 9
    for gpu in $(echo "${CUDA_VISIBLE_DEVICES-}" | tr , ' '); do
        echo "${SLURM_JOB_ID-}" >>"$folder/$gpu"
    done
) 9>"$folder/.lock" || true
exit 0
