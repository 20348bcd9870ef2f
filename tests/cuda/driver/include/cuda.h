// Kernels may include it; what they need of it is built in.
