"""A cursor over the tokens of SQL text, with errors that point to a line."""

from __future__ import annotations

from sqlglot.dialects.dialect import Dialect
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, TokenType

from millstream.errors import PipelineError


class Tokens:
    """A cursor over the tokens of a text in Spark's dialect."""

    def __init__(self, text: str, what: str) -> None:
        self.text = text
        self.what = what  # names the text in errors, as in "the schema"
        self._tokens = split_tokens(text, what)
        self._at = 0

    @property
    def next(self) -> Token | None:
        """The next token, or None at the end."""
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    @property
    def before(self) -> Token | None:
        """The last consumed token, or None at the start."""
        return self._tokens[self._at - 1] if self._at else None

    def ahead(self, count: int) -> list[Token]:
        """The next tokens, without consuming them."""
        return self._tokens[self._at : self._at + count]

    def next_is(self, *words: str) -> bool:
        """Whether the next tokens are these symbols or words."""
        upcoming = self._tokens[self._at : self._at + len(words)]
        return len(upcoming) == len(words) and all(map(_is, upcoming, words))

    def skip(self, *words: str) -> bool:
        """Consume these tokens if they are next."""
        if not self.next_is(*words):
            return False
        self._at += len(words)
        return True

    def advance(self) -> Token | None:
        """Consume the next token; None at the end."""
        token = self.next
        self._at += 1
        return token

    def expect(self, word: str, remedy: str = "") -> Token:
        """Consume `word`; PipelineError if something else is next."""
        if not self.next_is(word):
            raise self.unexpected(f"{word!r} is expected", remedy)
        token = self.advance()
        assert token is not None
        return token

    def expect_name(self, what: str, remedy: str = "") -> str:
        """Consume a name, plain or in backquotes; PipelineError if something else is next."""
        token = self.next
        if token is None or not is_name(token):
            raise self.unexpected(f"{what} is expected", remedy)
        self._at += 1
        return token.text if token.token_type is TokenType.IDENTIFIER else self.written(token)

    def written(self, token: Token) -> str:
        """The token as the user wrote it."""
        return self.text[token.start : token.end + 1]

    def unexpected(self, message: str, remedy: str = "") -> PipelineError:
        """The error for a token that is not the expected one."""
        found = f"not {self.written(self.next)!r}" if self.next else "but the text ends"
        return self.error(f"{self.what} cannot be read: {message}, {found}", remedy)

    def error(self, message: str, remedy: str = "", at: Token | None = None) -> PipelineError:
        """An error at a token, or at the cursor."""
        at = at or self.next
        start = at.start if at else len(self.text.rstrip())
        return PipelineError(message, remedy=remedy, line=line_at(self.text, start))


def split_tokens(text: str, what: str, dialect: Dialect | None = None) -> list[Token]:
    """The tokens of a text, by default in Spark's dialect.

    PipelineError if a quote or comment is left open.
    """
    dialect = dialect or Spark()
    try:
        return dialect.tokenize(text)
    except SqlglotError:
        start = _unclosed_at(text, dialect)
        raise PipelineError(
            f"{what} has a quote or comment that is not closed: {text[start : start + 20]!r}",
            remedy="close it",
            line=line_at(text, start),
        ) from None


def _unclosed_at(text: str, dialect: Dialect) -> int:
    """The start of the quote or comment without end: after the longest valid prefix."""
    for opening in sorted({i for i, c in enumerate(text) if c in "'\"`/"}):
        try:
            dialect.tokenize(text[:opening])
        except SqlglotError:
            continue
        last = opening
    return last


def is_name(token: Token) -> bool:
    """Whether the token is a name in backquotes, or any word, even a keyword."""
    return token.token_type is TokenType.IDENTIFIER or (
        token.token_type is not TokenType.STRING
        and token.text.replace("_", "a").isalnum()
        and not token.text.isdigit()
    )


def _is(token: Token, word: str) -> bool:
    quoted = token.token_type in (TokenType.STRING, TokenType.IDENTIFIER)
    return not quoted and token.text.upper() == word.upper()


def line_at(text: str, at: int) -> int:
    """The line, from 1, of an index in a text."""
    return text.count("\n", 0, at) + 1
