#!/bin/bash -l
# By ddlrun 1.0.0: ddlrun submit 4x2x3
#PBS -N ddlrun-train
#PBS -l select=6:ncpus=32:mpiprocs=4:ngpus=4:mem=262144mb
#PBS -l place=scatter:excl
#PBS -l walltime=1:30:00
#PBS -q gpu
#PBS -A vision
#PBS -j oe
#PBS -k doe
#PBS -r y
#PBS -V
#PBS --extra option
module load cuda/12.4 || exit
module load gcc || exit
cd /home/me/job || exit
exec apptainer exec --nv 'train image.sif' /opt/ddlrun/bin/ddlrun launch --topology 4x2x3 --env 'NAME=two words' train.py --epochs 90
