"""What lying clients and noise on reports cost. The experiments are this project's own."""
