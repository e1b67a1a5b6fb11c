#!/bin/sh
# By ddlrun 1.0.0: ddlrun submit 4x2x3
#SBATCH --job-name=ddlrun-train
#SBATCH --nodes=6
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --output=ddlrun-%j.out
cd /home/me/job || exit
exec /opt/ddlrun/bin/ddlrun launch --topology 4x2x3 --env 'NAME=two words' train.py --epochs 90
