"""Results as data files, and the documents that show them; results/README.md explains the files and commands.

`files` reads and writes the files, `recording` makes them, `machine` describes the machine, `claims` computes
effects and verdicts, `pages`, `tables` and `figures` fill the documents, `checking` compares the files with
the code.
"""
