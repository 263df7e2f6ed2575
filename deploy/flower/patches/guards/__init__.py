"""Guards: the patches that protect Flower's programs.

They protect a program from other users of its machine, from strangers in the network, and from the programs
with which it communicates. No program runs without its guards (`deploy.flower.launch`).
"""
