"""`langchain-openai` against both providers."""

import asyncio

import pytest
from conftest import MOCK, REAL
from langchain_openai import ChatOpenAI, OpenAIEmbeddings


def chat(url, model, **options):
    return ChatOpenAI(
        base_url=url + "/v1", api_key="unused", model=model, max_retries=0, timeout=120, **options
    )


def test_a_real_answer_has_text_finish_reason_and_usage(real_url):
    # `max_tokens` would leave as `max_completion_tokens`, which llama.cpp's server does not know.
    model = chat(real_url, REAL, extra_body={"max_tokens": 8}, temperature=0)
    answer = model.invoke("Name three colours.")
    assert answer.text.strip()
    assert answer.response_metadata["finish_reason"] == "length"
    assert answer.usage_metadata["output_tokens"] == 8


def test_a_real_stream_adds_up_to_the_whole_answer(real_url):
    model = chat(real_url, REAL, extra_body={"max_tokens": 8}, temperature=0)
    whole = model.invoke("Name three colours.").text
    assert "".join(chunk.text for chunk in model.stream("Name three colours.")) == whole


def test_a_stream_brings_usage_where_the_provider_gives_it(mock_url):
    model = chat(mock_url, MOCK, stream_usage=True)
    total = None
    for chunk in model.stream("[[bench chunks=6]]"):
        total = chunk if total is None else total + chunk
    assert total.text.count("@#") == 6
    assert total.usage_metadata["output_tokens"] == 6
    assert total.response_metadata["finish_reason"] == "stop"


def test_asynchronous_streams_run_side_by_side(mock_url):
    model = chat(mock_url, MOCK)

    async def one(chunks):
        text = [c.text async for c in model.astream(f"[[bench chunks={chunks} delay_us=1000]]")]
        return "".join(text).count("@#")

    async def main():
        return await asyncio.gather(*(one(number) for number in range(10, 14)))

    assert asyncio.run(main()) == [10, 11, 12, 13]


def test_embeddings_of_several_texts(mock_url):
    # Without the length check no tokenizer has to be downloaded.
    model = OpenAIEmbeddings(
        base_url=mock_url + "/v1",
        api_key="unused",
        model=MOCK,
        check_embedding_ctx_length=False,
        max_retries=0,
    )
    vectors = model.embed_documents(["[[bench dims=8]] a", "b"])
    assert vectors[1] == [1 + at / 64 for at in range(8)]


@pytest.mark.iop
def test_an_unknown_model_is_an_error_that_names_it(mock_url):
    with pytest.raises(Exception, match="no-such-model"):
        chat(mock_url, "no-such-model").invoke("hi")
