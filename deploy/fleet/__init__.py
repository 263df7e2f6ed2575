"""The Fleet API: this project's own gRPC service, over which devices and the SuperLink exchange messages.

What happens to a request, from the socket to the database:

1. `gate`: the connection is accepted, decrypted and counted; frames of HTTP/2 that only attacks need end it.
2. `server`: gRPC reads the headers, and asks `enrolment` and then `front_door` for the request's handler.
3. `front_door`: the headers are checked (key, signature, time), the node's requests are counted, and only
   then is the body read. `admission` decides whether the node may send this reply or this object.
4. `servicer`: the method is answered by Flower's handler, which knows nothing of gRPC. `held_requests` holds
   a request for messages until there is one, `deliveries` delivers a lost message again, `presence` holds
   heartbeats and notices nodes that leave, `joined_objects` answers for several objects at once.
5. `storage`: Flower's state in SQLite, with fewer statements.
6. `errors`: an error becomes a gRPC status and a text.

`wire` is the contract with the devices. On a device, `node` is the SuperNode's loop, `connection` sends its
requests, `bundles` checks which app it runs, and `transfers` fetches and sends a message's objects.
"""
