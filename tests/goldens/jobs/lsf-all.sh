#!/bin/bash -l
# By ddlrun 1.0.0: ddlrun submit 4x2x3
#BSUB -J ddlrun-train
#BSUB -n 24
#BSUB -R "span[ptile=4]"
#BSUB -R "affinity[core(8)]"
#BSUB -gpu "num=4"
#BSUB -R "rusage[mem=262144MB/host]"
#BSUB -x
#BSUB -W 1:30
#BSUB -q gpu
#BSUB -P vision
#BSUB -o ddlrun-%J.out
#BSUB -wa USR1 -wt 0:02
#BSUB -r
#BSUB --extra option
module load cuda/12.4 || exit
module load gcc || exit
cd /home/me/job || exit
exec apptainer exec --nv 'train image.sif' /opt/ddlrun/bin/ddlrun launch --topology 4x2x3 --env 'NAME=two words' train.py --epochs 90
