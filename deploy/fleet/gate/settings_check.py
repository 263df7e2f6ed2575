"""Checks that a peer confirms gRPC's settings before it sends a request.

gRPC limits the headers of a peer's requests only once the peer has confirmed the settings in which gRPC
announced the limit. Every peer that uses gRPC confirms the settings before its first request.
"""

MOST = 4 * 1024  # the most bytes that a peer may send before it confirms the settings
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # the first bytes of a peer (RFC 9113, section 3.4)
# Nine bytes precede a frame's content: the content's length (3), the kind, the flags, and the stream (4).
_HEAD = 9
_SETTINGS, _PING, _WINDOW_UPDATE = 4, 6, 8  # the kinds of frames that are no part of a request
_CONFIRMS = 1  # the flag of a SETTINGS frame that confirms the settings of the other side


class NotAllowedError(Exception):
    """A peer sent bytes that it may not send."""


class SettingsCheck:
    """Until a peer has confirmed gRPC's settings, lets through only frames that belong to no request."""

    def __init__(self) -> None:
        self.confirmed = False
        self._began = False  # whether the preface has arrived
        self._passed = 0  # bytes
        self._rest = b""  # the beginning of a frame whose end has not arrived

    def allowed(self, data: bytes) -> bytes:
        """Return the bytes that gRPC may get, now that a peer has sent `data`.

        Before the peer has confirmed the settings, these are only complete frames; afterwards, all bytes.

        Raises NotAllowedError if the peer does not speak HTTP/2, begins a request, or sends more than `MOST`
        bytes before it confirms the settings.
        """
        if self.confirmed:
            return data
        data = self._rest + data
        end = 0
        if not self._began:
            if data[: len(_PREFACE)] != _PREFACE[: len(data)]:
                raise NotAllowedError("the peer does not speak HTTP/2")
            self._began = len(data) >= len(_PREFACE)
            end = len(_PREFACE) if self._began else 0
        while self._began and len(data) >= end + _HEAD:
            kind, flags = data[end + 3], data[end + 4]
            if kind not in (_SETTINGS, _PING, _WINDOW_UPDATE):
                raise NotAllowedError("the peer began a request before it had confirmed the settings")
            following = end + _HEAD + int.from_bytes(data[end : end + 3])
            if following > len(data):
                break
            end = following
            if kind == _SETTINGS and flags & _CONFIRMS:
                self.confirmed = True
                return data
        self._passed += end
        self._rest = data[end:]
        if self._passed + len(self._rest) > MOST:
            raise NotAllowedError(f"the peer sent more than {MOST} bytes before it confirmed the settings")
        return data[:end]
