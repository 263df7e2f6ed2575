"""`cohort check`: lets one client of a Flower app train, and says which selectors the app can use.

The app runs in a process of its own. In the process of the command, Cohort's packages `client` and `server`
would hide the app's modules of these names, the app's output would mix with the command's, and an app that
ends its process would end the command without an explanation.
"""
