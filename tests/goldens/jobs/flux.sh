#!/bin/sh
# flux: -N 6 -n 6 --cores-per-slot=4
# flux: --gpus-per-slot=4
# flux: --job-name=ddlrun-train
# flux: --output=ddlrun-{{id}}.out
# By ddlrun 1.0.0: ddlrun submit 4x2x3
cd /home/me/job || exit
exec /opt/ddlrun/bin/ddlrun launch --topology 4x2x3 --env 'NAME=two words' train.py --epochs 90
