"""The ServerApp (app.py), the settings of a run, its history (history/), its models and its trackers."""
