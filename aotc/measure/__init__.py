"""How fast a built file is: time by step, a baseline to hold later builds against, exact counts of instructions."""
