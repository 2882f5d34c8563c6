"""Sessions and codes of the console are valid for a time, with one token, and codes once."""

from __future__ import annotations

from millpond.service.api.sessions import SECONDS, Sessions

TOKEN = "a-token-of-some-length"


def test_a_session_is_valid_for_its_time_in_each_process_with_the_token() -> None:
    now = [1_000_000_000]
    session = Sessions(TOKEN, lambda: now[0]).issue("session")
    other = Sessions(TOKEN, lambda: now[0])
    assert TOKEN not in session
    assert other.accepts("session", session)
    assert not Sessions("another-token-of-length", lambda: now[0]).accepts("session", session)
    now[0] += SECONDS["session"] * 1_000_000 - 1
    assert other.accepts("session", session)
    now[0] += 1
    assert not other.accepts("session", session)


def test_nothing_else_is_accepted() -> None:
    sessions = Sessions(TOKEN, lambda: 0)
    until, name, signature = sessions.issue("session").split(".")
    for wrong in ("", TOKEN, f"{until}9.{name}.{signature}", f"{until}.{name[::-1]}.{signature}",
                  f"{until}.{name}.{signature[::-1]}", f"{until}.{name}", f"{until}.{name}.{signature}\n"):  # fmt: skip
        assert not sessions.accepts("session", wrong), wrong
    assert not sessions.accepts("session", sessions.issue("code")), "a code is no session"


def test_a_code_is_accepted_once_and_a_session_until_its_end() -> None:
    now = [0]
    sessions = Sessions(TOKEN, lambda: now[0])
    code, session = sessions.issue("code"), sessions.issue("session")
    assert sessions.end("code", code) and not sessions.end("code", code)
    assert sessions.accepts("session", session)
    assert sessions.end("session", session) and not sessions.accepts("session", session)
    late = sessions.issue("code")
    now[0] += SECONDS["code"] * 1_000_000
    assert not sessions.end("code", late)
