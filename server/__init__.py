"""The ServerApp: run config -> strategy -> run; evaluation and history."""
