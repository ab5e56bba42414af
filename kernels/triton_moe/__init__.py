"""Experts on a CUDA device as Triton kernels: grouped matrix products over rows sorted by expert.

Importing loads no Triton. None of these kernels has been timed on a GPU so far; `make gpu-check` does it.
"""
