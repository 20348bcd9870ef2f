"""Lowering of fused functions to CUDA: launches to CUDA C by TVM, to machine code of exact GPUs by NVRTC."""
