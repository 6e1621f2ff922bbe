"""The model list and embeddings with the official `openai` client."""

import base64
import struct

import openai
import pytest
from conftest import MOCK, REAL


@pytest.mark.iop
def test_the_list_names_the_models_of_all_providers(mock):
    models = mock.models.list().data
    assert {REAL, MOCK} <= {model.id for model in models}
    assert all(model.object == "model" for model in models)


@pytest.mark.iop
def test_a_model_can_be_looked_up(mock):
    for name in (REAL, MOCK):
        assert mock.models.retrieve(name).id == name


@pytest.mark.iop
def test_looking_up_an_unknown_model_is_not_found(mock):
    with pytest.raises(openai.NotFoundError) as caught:
        mock.models.retrieve("no-such-model")
    assert caught.value.code == "model_not_found"


def expected(index, length):
    return [index % 64 + (at % 64) / 64 for at in range(length)]


def test_embeddings_arrive_as_numbers(mock):
    # Without a format this client asks for base64 and unpacks it itself.
    answer = mock.embeddings.create(model=MOCK, input=["a", "b", "c"])
    assert [item.index for item in answer.data] == [0, 1, 2]
    assert answer.data[2].embedding == expected(2, 256)
    answer = mock.embeddings.create(model=MOCK, input="[[bench dims=8]]", encoding_format="float")
    assert answer.data[0].embedding == expected(0, 8)
    assert answer.usage.prompt_tokens == 1


def test_embeddings_in_base64_are_little_endian_floats(mock):
    answer = mock.embeddings.create(
        model=MOCK, input=["[[bench dims=8]]", "b"], encoding_format="base64"
    )
    packed = base64.b64decode(answer.data[1].embedding)
    assert list(struct.unpack("<8f", packed)) == expected(1, 8)
