"""What only a GPU can say: numbers and times of the CUDA kernels on a datacentre GPU. See ``__main__.py``."""
