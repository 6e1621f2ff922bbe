"""Chat and completions with the official `openai` client."""

import asyncio
import re
import threading
import time

import openai
import pytest
from conftest import MOCK, REAL, knobs, prompt


def text_of(chunks):
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def finish_reasons(chunks):
    return [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]


def test_a_real_answer_has_text_finish_reason_and_usage(real):
    answer = real.chat.completions.create(
        model=REAL, messages=prompt("Name three colours."), max_tokens=12, temperature=0
    )
    assert answer.model == REAL
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content.strip()
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_a_real_answer_that_ends_by_itself_says_stop(real):
    answer = real.chat.completions.create(
        model=REAL, messages=prompt("Say yes."), max_tokens=200, temperature=0, stop=["\n", "."]
    )
    assert answer.choices[0].finish_reason == "stop"


def test_a_real_stream_gives_the_same_text_as_the_whole_answer(real):
    request = {
        "model": REAL,
        "messages": prompt("Name three colours."),
        "max_tokens": 12,
        "temperature": 0,
    }
    whole = real.chat.completions.create(**request)
    chunks = list(real.chat.completions.create(stream=True, **request))
    assert text_of(chunks) == whole.choices[0].message.content
    assert finish_reasons(chunks) == ["length"]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.usage is None for chunk in chunks), "nobody asked for usage"


@pytest.mark.iop
def test_usage_that_a_real_provider_leaves_out_arrives_as_an_estimate(real):
    """llama.cpp's server ignores include_usage; what IOP supplies says that it is an estimate."""
    chunks = list(
        real.chat.completions.create(
            model=REAL,
            messages=prompt("Hi"),
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert finish_reasons(chunks) == ["length"]
    assert [bool(chunk.usage) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    usage = chunks[-1].usage
    assert usage.completion_tokens == 5
    assert usage.prompt_tokens > 0
    assert usage.iop_source == "estimated"


def test_usage_arrives_once_and_last_when_it_was_asked_for(mock):
    chunks = list(
        mock.chat.completions.create(
            model=MOCK,
            messages=knobs(chunks=7),
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert [bool(chunk.usage) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 7


def test_usage_that_nobody_asked_for_does_not_arrive(mock):
    chunks = list(
        mock.chat.completions.create(model=MOCK, messages=knobs(chunks=7), stream=True)
    )
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert finish_reasons(chunks) == ["stop"]


@pytest.mark.iop
def test_usage_that_a_scripted_provider_leaves_out_is_counted(mock):
    chunks = list(
        mock.chat.completions.create(
            model=MOCK,
            messages=knobs(chunks=3, no_usage=1),
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert finish_reasons(chunks) == ["stop"]
    assert chunks[-1].usage.completion_tokens == 3
    assert chunks[-1].usage.iop_source == "estimated"


def test_a_long_stream_arrives_whole_and_in_order(mock):
    stream = mock.chat.completions.create(model=MOCK, messages=knobs(chunks=5000), stream=True)
    indexes = [int(index) for index in re.findall(r"@#(\d+):", text_of(stream))]
    assert indexes == list(range(5000))


def test_completions_answer_in_one_piece(real, mock):
    answer = real.completions.create(model=REAL, prompt="One, two,", max_tokens=6, temperature=0)
    assert answer.choices[0].text.strip()
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 6
    answer = mock.completions.create(model=MOCK, prompt="[[bench size=40]]")
    assert len(answer.choices[0].text) == 40


def test_real_completions_stream(real):
    chunks = list(
        real.completions.create(
            model=REAL, prompt="One, two,", max_tokens=6, temperature=0, stream=True
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks).strip()
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["length"]


def test_a_stream_that_breaks_off_is_an_error_not_an_end(mock):
    stream = mock.chat.completions.create(
        model=MOCK, messages=knobs(chunks=9, cut=3, delay_us=10000), stream=True
    )
    seen = []
    with pytest.raises(Exception) as caught:
        seen.extend(stream)
    # The transport error is the client's own; what matters is that no clean end was seen.
    assert not isinstance(caught.value, AssertionError)
    assert finish_reasons(seen) == []
    assert len(re.findall(r"@#\d+:", text_of(seen))) == 3


def test_the_asynchronous_client_streams_many_answers_at_once(mock_url):
    async def one(client, chunks):
        stream = await client.chat.completions.create(
            model=MOCK, messages=knobs(chunks=chunks, delay_us=1000), stream=True
        )
        return text_of([chunk async for chunk in stream]).count("@#")

    async def main():
        async with openai.AsyncOpenAI(
            base_url=mock_url + "/v1", api_key="unused", max_retries=0, timeout=60
        ) as client:
            return await asyncio.gather(*(one(client, 20 + number) for number in range(8)))

    assert asyncio.run(main()) == [20 + number for number in range(8)]


def stamps(text):
    """When the provider made each chunk, on its own clock."""
    return [int(time_ns) for time_ns in re.findall(r"@#\d+:(\d+)", text)]


@pytest.mark.iop
def test_two_requests_at_a_provider_of_capacity_one_take_turns_and_both_finish(narrow):
    made = {}

    def ask(name):
        stream = narrow.chat.completions.create(
            model=MOCK, messages=knobs(chunks=20, delay_us=10000), stream=True
        )
        made[name] = stamps(text_of(stream))

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = sorted(made.values())
    assert len(first) == len(second) == 20
    assert first[-1] < second[0], "the second began before the first had ended"


@pytest.mark.iop
def test_two_requests_at_a_real_model_of_capacity_one_both_finish(narrow):
    answers = {}

    def ask(name):
        stream = narrow.chat.completions.create(
            model=REAL, messages=prompt(f"Count to {name}."), max_tokens=24, stream=True
        )
        answers[name] = finish_reasons(stream)

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("five", "nine")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(answers) == {"five", "nine"}
    assert all(reasons in (["stop"], ["length"]) for reasons in answers.values())


@pytest.mark.iop
def test_an_aborted_stream_frees_its_place_at_once(narrow):
    # An hour of chunks: only an abort that reaches the provider lets the next request through.
    stream = narrow.chat.completions.create(
        model=MOCK, messages=knobs(chunks=360000, delay_us=10000), stream=True
    )
    next(iter(stream))
    stream.close()
    began = time.monotonic()
    answer = narrow.chat.completions.create(model=MOCK, messages=knobs(size=10))
    assert len(answer.choices[0].message.content) == 10
    assert time.monotonic() - began < 5


def test_an_aborted_real_stream_lets_the_next_request_through(real):
    stream = real.chat.completions.create(
        model=REAL, messages=prompt("Write a very long story."), max_tokens=3000, stream=True
    )
    for _, _chunk in zip(range(4), stream):
        pass
    stream.close()
    answer = real.chat.completions.create(model=REAL, messages=prompt("Hi"), max_tokens=4)
    assert answer.usage.completion_tokens <= 4
