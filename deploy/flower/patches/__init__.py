"""All changes that this project makes inside Flower's programs.

`deploy.flower.launch` applies them when it starts a program. No file outside this folder uses private names
of Flower. `launch` says what happens with another version of Flower.

The SuperNode (`supernode`, `connection`):

- If the SuperLink holds requests (see below), the SuperNode asks for the next message as soon as its last
  request was answered. If the SuperLink does not, the SuperNode pauses between two requests. The pauses grow
  from 0.1 to 0.5 s with the time since the last message. In stock Flower every pause is 3 s.
- It notices a received message and a finished reply at once. Stock Flower looks for a message every 1 s and
  for a reply every 0.5 s.
- It notices at once that a ClientApp was killed. Stock Flower waits a minute for the ClientApp's heartbeats,
  and so delays the round by a minute.
- It waits two minutes for a ClientApp's process to begin its task. Stock Flower starts another process after
  half a minute, although the first one may be starting on a slow device.
- It always has a heartbeat under way, so the SuperLink notices when the SuperNode ends.
- While the SuperLink cannot be reached or its database is locked, the SuperNode tries again after at most
  4 s. In stock Flower the pauses between two attempts grow to 20 s, or to 2 min if gRPC cannot connect.
- It keeps a process that has imported the app, from which it forks a process for each message (`apps`). In
  stock Flower each message imports the app.
- It runs only a trusted bundle (`guards.bundles`), and hands out no task over HTTP (`guards.local_apis`).

The SuperLink (`superlink`, `held_requests`, `presence`, `deliveries`, `joined_objects`, `clock_jumps`,
`storage` and `guards`). It receives messages and replies in parts, which Flower calls objects, and all parts
of a message in one push session.

- It holds a SuperNode's request for messages until a message has arrived with all its parts, for at most
  60 s. It holds a ServerApp's request for replies in the same way, for at most 1 s. A held request of a
  SuperNode occupies no thread (`deploy.flower.deferred_answers`), so thousands of nodes can wait.
- Its threads take turns at the database. Messages, their objects and heartbeats take few statements, whose
  texts are fixed and which SQLite gets without SQLAlchemy (`storage`). In stock Flower, threads wait for the
  database by polling.
- It verifies the signature of a request once. Otherwise the front door (see below) and Flower would each
  verify it.
- Some database accesses that stock Flower makes in every request are made at most once a second: looking up
  whether a run goes on and which node has a key, ending expired tasks, storing traffic and run times of
  ClientApps. So a revoked key stays valid for up to a second.
- It marks a node as offline 2 s after the node's connection has ended, or 13 s after the node's last byte.
  Stock Flower needs 40 to 60 s. A node that was restarted can return at once.
- If a node asks for the next message without having confirmed the last one, the SuperLink delivers the last
  one again, because a broken connection may have lost it.
- It hands out a reply only when all parts of the reply have arrived.
- If a node restarts, the messages that it had received are lost. The SuperLink reports them as lost at once.
- It deletes messages of past rounds (`storage.past_rounds`).
- A SuperNode or an app fetches or sends up to 64 small objects with one request (`joined_objects`). In stock
  Flower, each object takes a request.
- A jump of the system's clock ends no run (`clock_jumps`). In stock Flower a jump by a minute or two does.
- It ends within seconds of SIGTERM. If a program follows the log of a run, stock Flower first waits for the
  end of the run.
- Its Fleet API has a front door (`guards.request_checks`, `sockets`). The front door authenticates a request
  before it reads the request. It limits the requests of each node, closes the connections of strangers, and
  logs why it refuses a request.
- Its Fleet API has a gate (`guards.connection_gate`), which ends TLS and limits connections and headers.
- A node cannot authenticate with its own key and be activated with another node's key. Stock Flower allows
  it.
- A node can send one reply to a message that it received. The reply may have at most four times the bytes of
  the ServerApp's largest message, or 1 MiB if that is more (`guards.reply_admission`).
- A node's statements about the objects of its reply do not affect other senders (`guards.object_trees`).
- The control API demands a secret (`guards.local_apis`). Invited devices are registered (`guards.enrolment`).

The ServerApp (`serverapp`, `guards.reply_size`):

- A reply becomes an error reply of its node if the reply would be too large once inflated, differs from its
  announcement, or cannot be read. In stock Flower a reply that cannot be read ends the run.
- A signal of this project, `commands.STOP_RUN`, ends the app at once, and then Flower's part of the process.
  Flower's own signals do not say that somebody stops the run.

Several programs (`superexec`, `shared`):

- In the SuperNode and the SuperLink, a thread starts the apps (ClientApps and ServerApps), instead of the
  process `flower-superexec`. The apps are forked from a process that has already imported Flower
  (`deploy.flower.fork_server`). They send their requests over a socket pair (`deploy.flower.channel`) instead
  of HTTP.
- A missing part of a message is requested again after 0.02 s. Stock Flower waits 1 s.
- In the SuperNode and the SuperLink, a line of the log that no handler writes costs nothing. Stock Flower
  makes a record of several lines for each object that is sent.

The protocol between machines is Flower's own, so patched and stock programs work together. A change that
needs both sides has no effect if one side is stock.
"""
