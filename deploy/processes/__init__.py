"""Starts, supervises and ends processes. All files of this folder use the standard library only."""
