"""App servers: processes that have imported an app, and fork a process for each message to the app."""
