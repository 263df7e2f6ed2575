"""Results as data files, and the documents that are made from them.

The folder ``results/`` at the root of this repository has one JSON file for each experiment or benchmark:

- A **recorded** file has the command, the commit, the digest of all sources that the experiment imports
  (comments and docstrings left out), the digest of its data, the date, the machine, and, for each seed,
  the value of each cell of the experiment's table.
- A **measured** file has the output of a benchmark. It has a digest only if the benchmark's sources alone
  decide the output (`recording.REPEATABLE`).
- A **kept** file has the text of a table from before results were recorded. It has no raw values, as its page
  states.

Nobody edits these files, or the pages ``docs/results.md`` and ``docs/results/*.md``, by hand.
These commands write and check them:

=============================================  ==========================================================
``cohort bench papers NAME --record``          runs an experiment, and writes its file
``cohort bench results --measure "COMMAND"``   runs a benchmark, and writes its file
``cohort bench results --write``               writes the pages from the files (``make results``)
``cohort bench results --check``               compares pages, digests and a sample of seeds with the code
                                               (``make results-check``)
``cohort bench results --renew``               after a change of code that changes no result: reruns one seed
                                               of each outdated file (of a benchmark: everything), and writes
                                               the new digest if the values are equal
=============================================  ==========================================================

`files` reads and writes the files, `machine` describes the machine, `claims` computes effects and verdicts,
`pages` and `figures` make the documents, `checking` compares the files with the code.
"""
