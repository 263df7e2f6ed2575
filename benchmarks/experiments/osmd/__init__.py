"""The experiments of the OSMD paper: those of its appendices F and G, and one on personal models."""
