"""Plan, weights and code become one .so; it is checked, and read back for inspect and check."""
