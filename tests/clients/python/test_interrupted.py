"""A real server that gives up one answer for the sake of the next request: llama.cpp's default.

Its stream then stops after some words with `[DONE]` and no finish reason, which most clients take for
a finished answer.
"""

import json
import time
import urllib.request

import pytest
from conftest import prompt, variable
from test_openai_chat import finish_reasons, text_of

pytestmark = pytest.mark.iop

LONG = {"messages": prompt("Tell a long story about a lighthouse."), "max_tokens": 1500, "temperature": 0}
SHORT = {"messages": prompt("Name one colour."), "max_tokens": 4, "temperature": 0}


def get(url):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return json.load(opener.open(url))


def wait_for(what, look):
    """What `look` finds, once it finds something."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.1)
    raise AssertionError(f"{what} did not come in 60 s")


def terminal(request_id):
    """How history says that a request ended."""
    runs = get(variable("IOP_TEST_ENGINES_ADMIN_URL") + "/api/v1/runs?limit=20")["runs"]
    return next((run.get("terminal") for run in runs if run.get("request_id") == request_id), None)


def test_an_answer_that_was_given_up_is_truncated_and_never_completed(engines, engines_url):
    listed = lambda: get(engines_url + "/v1/models")["data"]
    wait_for("the model", lambda: [m for m in listed() if m["id"] == "rude" and m["availability"] == "available"])
    raw = engines.chat.completions.with_raw_response.create(model="rude", stream=True, **LONG)
    chunks = []
    for chunk in raw.parse():
        chunks.append(chunk)
        if len(chunks) == 5:
            # The first words are here: now somebody else asks.
            other = engines.chat.completions.create(model="rude", **SHORT)
            assert other.choices[0].message.content
    assert text_of(chunks).strip()
    assert finish_reasons(chunks) == [], "nobody said that this answer was finished"
    ended = wait_for("the end", lambda: terminal(raw.headers["x-request-id"]))
    assert (ended["kind"], ended["code"]) == ("failed", "truncated")
