"""Hostile input: mutants of real models through the importer and the compiler, damaged built files through the loaders."""
