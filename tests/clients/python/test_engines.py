"""The adapters `ollama` and `vllm` in front of the real model, with official clients.

`forced` and `free` are one Ollama: `forced` configures `context_size` and `keep_alive`, `free` nothing.
`vllm` is llama.cpp's server itself.
"""

import json
import time
import urllib.request

import pytest
from conftest import prompt, variable
from langchain_openai import ChatOpenAI
from test_openai_chat import finish_reasons, text_of

pytestmark = pytest.mark.iop

ALL = ["forced", "free", "vllm"]
# The Ollama server's own /v1 passes no temperature on, so that its answers differ.
REPEATABLE = ["forced", "vllm"]
REQUEST = {"messages": prompt("Name three colours."), "max_tokens": 12, "temperature": 0}


def asked():
    """What the Ollama server was asked up to now."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return json.load(opener.open(variable("IOP_TEST_OLLAMA_URL") + "/seen"))


def chat(url, model):
    # `max_tokens` would leave as `max_completion_tokens`, which llama.cpp's server does not know.
    return ChatOpenAI(
        base_url=url + "/v1",
        api_key="unused",
        model=model,
        max_retries=0,
        timeout=120,
        temperature=0,
        extra_body={"max_tokens": 8},
    )


@pytest.fixture(autouse=True, scope="module")
def everything_is_there(engines_url):
    """`/ready` needs one provider; these tests need all."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + 30
    while time.monotonic() < end:
        listed = json.load(opener.open(engines_url + "/v1/models"))["data"]
        if {model["id"] for model in listed if model["availability"] == "available"} >= set(ALL):
            return
        time.sleep(0.2)
    raise AssertionError(f"not everything is available: {listed}")


@pytest.mark.parametrize("model", ALL)
def test_an_answer_comes_whole_and_as_a_stream(engines, model):
    whole = engines.chat.completions.create(model=model, **REQUEST)
    assert whole.choices[0].message.content.strip()
    assert whole.usage.completion_tokens > 0
    chunks = list(engines.chat.completions.create(model=model, stream=True, **REQUEST))
    assert text_of(chunks).strip()
    if model in REPEATABLE:
        assert text_of(chunks) == whole.choices[0].message.content
    assert len(chunks) > 3, "a stream comes in pieces"
    assert len(finish_reasons(chunks)) == 1


@pytest.mark.parametrize("model", ALL)
def test_langchain_invokes_and_streams(engines_url, model):
    langchain = chat(engines_url, model)
    whole = langchain.invoke("Name three colours.").text
    streamed = "".join(chunk.text for chunk in langchain.stream("Name three colours."))
    assert whole.strip() and streamed.strip()
    assert streamed == whole or model not in REPEATABLE


def test_a_forced_context_size_makes_every_chat_a_native_one(engines):
    before = len(asked())
    engines.chat.completions.create(model="forced", **REQUEST)
    list(engines.chat.completions.create(model="forced", stream=True, **REQUEST))
    engines.chat.completions.create(
        model="forced", extra_body={"options": {"num_ctx": 4096}, "keep_alive": -1}, **REQUEST
    )
    requests = asked()[before:]
    assert [request["path"] for request in requests] == ["/api/chat"] * 3
    for request in requests:
        assert request["body"]["model"] == "local/smollm2"
        assert request["body"]["options"]["num_ctx"] == 2048
        assert request["body"]["keep_alive"] == "5m"


def test_nothing_forced_leaves_the_request_to_ollamas_own_api(engines):
    before = len(asked())
    engines.chat.completions.create(model="free", **REQUEST)
    [request] = asked()[before:]
    assert request["path"] == "/v1/chat/completions"
    assert "num_ctx" not in json.dumps(request["body"])
    assert "keep_alive" not in request["body"]


def test_a_forced_completion_goes_to_generate(engines):
    before = len(asked())
    request = {"model": "forced", "prompt": "The sky is", "max_tokens": 8, "temperature": 0}
    whole = engines.completions.create(**request)
    assert whole.choices[0].text.strip()
    pieces = list(engines.completions.create(stream=True, **request))
    assert "".join(p.choices[0].text for p in pieces if p.choices) == whole.choices[0].text
    requests = asked()[before:]
    assert [request["path"] for request in requests] == ["/api/generate"] * 2
    assert {request["body"]["options"]["num_ctx"] for request in requests} == {2048}


def test_a_completion_by_vllm_is_the_servers(engines):
    answer = engines.completions.create(model="vllm", prompt="The sky is", max_tokens=8, temperature=0)
    assert answer.choices[0].text.strip()
    assert answer.usage.completion_tokens == 8


@pytest.mark.parametrize("model", ALL)
def test_a_stream_that_is_left_gives_the_only_place_back(engines, model):
    endless = {"messages": prompt("Count to one thousand."), "max_tokens": 1500}
    with engines.chat.completions.create(model=model, stream=True, **endless) as stream:
        next(iter(stream))
    began = time.monotonic()
    answer = engines.chat.completions.create(model=model, **REQUEST)
    assert answer.choices[0].message.content.strip()
    # The rest of 1 500 tokens would take longer than this on any machine that runs these tests.
    assert time.monotonic() - began < 12, "the next request waited for the one that was left"
