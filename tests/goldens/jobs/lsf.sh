#!/bin/sh
# By ddlrun 1.0.0: ddlrun submit 4x2x3
#BSUB -J ddlrun-train
#BSUB -n 24
#BSUB -R "span[ptile=4]"
#BSUB -gpu "num=4"
#BSUB -o ddlrun-%J.out
cd /home/me/job || exit
exec /opt/ddlrun/bin/ddlrun launch --topology 4x2x3 --env 'NAME=two words' train.py --epochs 90
