"""The `cohort` command and the programs behind it: engines, servers, devices and containers."""
