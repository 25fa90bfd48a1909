"""The paper's experiment, and others like it: workloads, the paper's rules taken literally, tables and figures."""
