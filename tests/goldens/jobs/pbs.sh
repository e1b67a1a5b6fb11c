#!/bin/sh
# By ddlrun 1.0.0: ddlrun submit 4x2x3
#PBS -N ddlrun-train
#PBS -l select=6:ncpus=4:mpiprocs=4:ngpus=4
#PBS -l place=scatter
#PBS -j oe
#PBS -k doe
#PBS -V
cd /home/me/job || exit
exec /opt/ddlrun/bin/ddlrun launch --topology 4x2x3 --env 'NAME=two words' train.py --epochs 90
