"""Tests of the recorded results."""
