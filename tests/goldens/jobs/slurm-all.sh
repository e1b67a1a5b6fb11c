#!/bin/bash -l
# By ddlrun 1.0.0: ddlrun submit 4x2x3
#SBATCH --job-name=ddlrun-train
#SBATCH --nodes=6
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --gres=gpu:4
#SBATCH --mem=262144M
#SBATCH --exclusive
#SBATCH --time=1:30:00
#SBATCH --partition=gpu
#SBATCH --account=vision
#SBATCH --output=ddlrun-%j.out
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --extra option
module load cuda/12.4 || exit
module load gcc || exit
cd /home/me/job || exit
exec apptainer exec --nv 'train image.sif' /opt/ddlrun/bin/ddlrun launch --topology 4x2x3 --env 'NAME=two words' train.py --epochs 90
