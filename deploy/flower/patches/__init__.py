"""All changes that this project makes inside Flower's programs.

`deploy.flower.launch` applies these changes when it starts a program. No file outside this folder changes
Flower. The first line of each file says what the file changes.

- `supernode`, `superlink`, `superexec`, `clientapp` and `serverapp` patch the programs of these names. They
  use the other files.
- `app_starts` starts the processes of apps, `app_channel` sends their requests, `retries` repeats them;
  `shared` holds what several files need.
- `apps` holds the processes from which a SuperNode forks its ClientApps.
- `guards` protects the programs.

Flower splits a message into parts, which it calls objects. A sender pushes all objects of a message in one
push session.

Flower starts the process of an app for each task. In a SuperLink, a task is the ServerApp of a run; in a
SuperNode, a message for a ClientApp.

The protocol between machines is Flower's own, so patched and stock programs work together. A change that
needs both sides has no effect if one side is stock.
"""
