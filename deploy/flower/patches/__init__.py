"""Everything that this project changes inside Flower's programs, one file per program.

`deploy.flower.launch` applies a patch when it starts its program. No other file touches private names of
Flower.

SuperNode (`supernode`):

- It requests the next message as soon as the last request was answered, if the SuperLink holds requests (see
  below). Otherwise it polls at intervals that grow with the time since the last message, from 0.1 to 0.5 s;
  Flower polls every 3 s.
- It notices a received message and a finished reply at once; Flower checks every 1 s and every 0.5 s. It also
  notices a killed ClientApp at once; Flower waits a minute for its heartbeats, and the round waits with it.

SuperLink (`superlink`, `held_requests`):

- It holds a SuperNode's request for messages, and a ServerApp's request for replies, until a message has
  arrived with all its parts, for at most 5 s and 1 s.
- It repeats some database accesses at most once a second instead of in every request: whether the run goes
  on, whose key this is, which tasks have expired, how many bytes were sent. So a revoked key stays valid for
  up to a second.
- It refuses a node that authenticates with one key and asks to be activated with another node's key, which
  Flower allows, and logs each refused node with the reason.

Both (`superexec`, `shared`):

- A thread starts the apps, instead of the process `flower-superexec`. They are forked from a process that has
  imported Flower already (`deploy.flower.fork_server`) and send their requests over a socket pair
  (`deploy.flower.channel`) instead of HTTP.
- A missing part of a message is requested again after 0.02 s; Flower waits 1 s.

The protocol between machines is Flower's own: patched and stock programs work together, each as fast as the
other allows.
"""
