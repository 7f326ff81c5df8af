"""WebSocket messages from frames, with the checks of RFC 6455 that picows does not make."""

from __future__ import annotations

from picows import WSCloseCode, WSFrame, WSMsgType

_MAX_FRAMES = 1_000  # in one message


class ProtocolError(Exception):
    """A client violated the protocol; the connection is closed with `code`."""

    def __init__(self, code: WSCloseCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class MessageAssembler:
    """Joins the frames of a message, and checks their order (RFC 6455, 5.4)."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._frames = 0  # of the message that is not complete yet
        self._payload = bytearray()
        self._is_text = False

    def add(self, frame: WSFrame) -> bytes | None:
        """The message that this frame completes; None if more frames follow."""
        if (frame.msg_type == WSMsgType.CONTINUATION) != (self._frames > 0):
            raise ProtocolError(
                WSCloseCode.PROTOCOL_ERROR,
                "a message began before the last one ended"
                if self._frames
                else "a continuation frame came without a message that it continues",
            )
        if not self._frames:
            self._is_text = frame.msg_type == WSMsgType.TEXT
        self._frames += 1
        self._payload += frame.get_payload_as_memoryview()
        if len(self._payload) > self._max_bytes:
            raise ProtocolError(WSCloseCode.MESSAGE_TOO_BIG, "the message is too big")
        if self._frames > _MAX_FRAMES:  # empty frames would never be too big
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


def has_reserved_bits(frame: WSFrame) -> bool:
    """Whether the frame has bits that mean something only with an extension."""
    return bool(frame.rsv1 or frame.rsv2 or frame.rsv3)
