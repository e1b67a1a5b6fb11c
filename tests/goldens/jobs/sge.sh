#!/bin/sh
# By ddlrun 1.0.0: ddlrun submit 4x2x3
#$ -N ddlrun-train
#$ -S /bin/sh
#$ -pe mpi 24
#$ -l gpu=1
#$ -cwd -j y -notify -V
#$ -o ddlrun-$JOB_ID.out
cd /home/me/job || exit
exec /opt/ddlrun/bin/ddlrun launch --topology 4x2x3 --env 'NAME=two words' train.py --epochs 90
