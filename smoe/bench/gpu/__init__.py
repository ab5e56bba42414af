"""What `make gpu-check` measures on a CUDA device."""
