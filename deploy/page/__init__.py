"""The live page: shows a run in a browser, while it goes on and afterwards. It only reads."""
