"""From fused functions to machine code, and from a whole module to an execution plan. TVM is imported only here and in
targets/schedules/."""
