"""WebSocket messages from frames, with the checks of RFC 6455 that picows leaves to us."""

from __future__ import annotations

from picows import WSCloseCode, WSFrame, WSMsgType

_MOST_FRAMES = 1_000  # in one message


class ProtocolError(Exception):
    """What a client sent is no WebSocket message that we take; the connection ends with `code`."""

    def __init__(self, code: WSCloseCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Assembly:
    """Puts the frames of a message together, and checks what picows does not (RFC 6455, 5.4)."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._frames = 0  # of the message that is not whole yet
        self._payload = bytearray()
        self._is_text = False

    def add(self, frame: WSFrame) -> bytes | None:
        """The message that the frame completes; None if more of it is to come."""
        if (frame.msg_type == WSMsgType.CONTINUATION) != (self._frames > 0):
            raise ProtocolError(
                WSCloseCode.PROTOCOL_ERROR,
                "a message began before the last one ended"
                if self._frames
                else "nothing was begun that this frame continues",
            )
        if not self._frames:
            self._is_text = frame.msg_type == WSMsgType.TEXT
        self._frames += 1
        self._payload += frame.get_payload_as_memoryview()
        if len(self._payload) > self._max_bytes:
            raise ProtocolError(WSCloseCode.MESSAGE_TOO_BIG, "the message is too big")
        if self._frames > _MOST_FRAMES:  # empty ones would never be too big
            raise ProtocolError(WSCloseCode.MESSAGE_TOO_BIG, "the message has too many frames")
        if not frame.fin:
            return None
        message = bytes(self._payload)
        self._frames, self._payload = 0, bytearray()
        if self._is_text:
            _check_text(message)
        return message


def _check_text(message: bytes) -> None:
    try:
        message.decode()
    except UnicodeDecodeError:
        raise ProtocolError(WSCloseCode.INVALID_TEXT, "the text is not UTF-8") from None


def is_extended(frame: WSFrame) -> bool:
    """Whether it has bits that only an extension gives a meaning."""
    return bool(frame.rsv1 or frame.rsv2 or frame.rsv3)
