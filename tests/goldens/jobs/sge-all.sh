#!/bin/bash -l
# By ddlrun 1.0.0: ddlrun submit 4x2x3
#$ -N ddlrun-train
#$ -S /bin/bash
#$ -pe mpi 24
#$ -l gpu=1
#$ -l exclusive=true
#$ -l h_rt=5400
#$ -q gpu
#$ -A vision
#$ -cwd -j y -notify -V
#$ -o ddlrun-$JOB_ID.out
#$ -r y
#$ --extra option
module load cuda/12.4 || exit
module load gcc || exit
cd /home/me/job || exit
exec apptainer exec --nv 'train image.sif' /opt/ddlrun/bin/ddlrun launch --topology 4x2x3 --env 'NAME=two words' train.py --epochs 90
