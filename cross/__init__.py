"""Building and running for other machines than this one: emulation, the program that runs a file on a board, wrappers for CMake."""
