"""The Fleet API: this project's own gRPC service, over which devices and the SuperLink exchange messages.

What happens to a request, from the socket to the database:

1. `gate`: the connection is accepted, decrypted and counted; frames of HTTP/2 that only attacks need end it.
2. `server`: gRPC reads the headers, and asks `FleetService.service` in `service` for the request's handler.
   That is `duties.enrolment` for an invited device, and `front_door` for a node.
3. `front_door`: in one of the `threads`, the headers are checked (key, budget, signature, time), and only
   then is the body read, whose bytes count too (`budgets`).
4. `service`: a method for each kind of request calls, from top to bottom, what checks the request
   (`admission`), the state, and what notes the answer (`use` adds up the bytes). Of the `duties`,
   `deliveries` delivers a lost message again, `held_requests` holds a request for messages until there is
   one, `presence` holds heartbeats and notices nodes that leave, `joined_objects` answers for several, and
   `front_ends` tells the other SuperLinks of a shared database what happens here.
5. `state`: the SuperLink's state, a subclass of Flower's, which Flower's own APIs use too. It calls the
   `duties`, which it shares with the service, when a message, an object or a node comes or goes. `storage`
   holds its statements.
6. `errors`: an error becomes a gRPC status and a text.

`wire` is the contract with the devices, and `protocol` holds its numbers, keys and objects. On a device
(`supernode`), `node` is the SuperNode's loop, `connection` sends its requests, `bundles` checks which app it
runs, and `transfers` fetches and sends a message's objects. A small message and its reply need no requests
for objects: the answer with the message and the announcement of the reply carry them (`wire.carry`).
"""
