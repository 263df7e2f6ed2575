"""The SuperLink's database: fewer statements, no polling, no messages of past rounds."""
