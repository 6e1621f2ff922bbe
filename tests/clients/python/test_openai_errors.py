"""Errors as the official `openai` client sees them."""

import http.client
import json
import urllib.parse

import openai
import pytest
from conftest import MOCK, REAL, knobs, prompt


@pytest.mark.iop
def test_an_unknown_model_is_not_found(mock):
    with pytest.raises(openai.NotFoundError) as caught:
        mock.chat.completions.create(model="no-such-model", messages=prompt("hi"))
    assert caught.value.code == "model_not_found"
    assert "no-such-model" in caught.value.message
    assert caught.value.request_id


@pytest.mark.iop
def test_an_unknown_model_is_not_found_for_a_stream_either(mock):
    with pytest.raises(openai.NotFoundError):
        mock.chat.completions.create(model="no-such-model", messages=prompt("hi"), stream=True)


def post(url, path, body, **headers):
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    try:
        headers = {"content-type": "application/json", **headers}
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())["error"]
    finally:
        connection.close()


@pytest.mark.iop
@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "mock-model", "messages": [',
        b"not json",
        b"[]",
        b"",
        b'{"messages": []}',
        b'{"model": 7, "messages": []}',
        b'{"model": "mock-model", "model": "smollm2", "messages": []}',
    ],
)
def test_a_malformed_body_is_an_invalid_request(mock_url, body):
    status, error = post(mock_url, "/v1/chat/completions", body)
    assert (status, error["code"]) == (400, "invalid_request")
    assert error["type"] == "invalid_request_error"
    assert error["message"]


@pytest.mark.iop
def test_an_unknown_path_is_not_found_in_the_dialect_of_the_surface(mock_url):
    status, error = post(mock_url, "/v1/no-such-thing", b"{}")
    assert (status, error["code"]) == (404, "not_found")


@pytest.mark.iop
def test_a_body_over_the_limit_is_too_large(mock):
    # The default limit is 32 MiB.
    with pytest.raises(openai.APIStatusError) as caught:
        mock.chat.completions.create(model=MOCK, messages=prompt("x" * (33 << 20)))
    assert caught.value.status_code == 413
    assert caught.value.code == "body_too_large"


def test_a_prompt_that_the_real_model_refuses_is_its_own_error(real):
    with pytest.raises(openai.BadRequestError) as caught:
        real.chat.completions.create(model=REAL, messages=prompt("word " * 6000))
    assert caught.value.code == "context_length_exceeded"
    assert "maximum context length" in caught.value.message


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_provider_error_keeps_its_status_and_body(mock, status, kind, stream):
    with pytest.raises(kind) as caught:
        mock.chat.completions.create(model=MOCK, messages=knobs(status=status), stream=stream)
    assert caught.value.status_code == status
    assert caught.value.code == "scripted"
    assert "the prompt asked for this error" in caught.value.message


@pytest.mark.iop
def test_every_answer_carries_a_request_id(mock):
    answer = mock.chat.completions.create(model=MOCK, messages=knobs(size=10))
    other = mock.chat.completions.create(model=MOCK, messages=knobs(size=10))
    assert answer._request_id and other._request_id
    assert answer._request_id != other._request_id
    with mock.chat.completions.with_streaming_response.create(
        model=MOCK, messages=knobs(chunks=2), stream=True
    ) as stream:
        assert stream.headers["x-request-id"]
        stream.read()
    with pytest.raises(openai.RateLimitError) as caught:
        mock.chat.completions.create(model=MOCK, messages=knobs(status=429))
    assert caught.value.request_id
