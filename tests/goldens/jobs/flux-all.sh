#!/bin/bash -l
# flux: -N 6 -n 6 --cores-per-slot=32
# flux: --gpus-per-slot=4
# flux: --exclusive
# flux: --time-limit=5400s
# flux: --queue=gpu
# flux: --bank=vision
# flux: --job-name=ddlrun-train
# flux: --output=ddlrun-{{id}}.out
# flux: --signal=USR1@120s
# flux: --extra option
# By ddlrun 1.0.0: ddlrun submit 4x2x3
module load cuda/12.4 || exit
module load gcc || exit
cd /home/me/job || exit
exec apptainer exec --nv 'train image.sif' /opt/ddlrun/bin/ddlrun launch --topology 4x2x3 --env 'NAME=two words' train.py --epochs 90
