"""Where the tests find what they drive. `scripts/clients` starts it all and sets these variables.

IOP_TEST_URL         IOP in front of both providers
IOP_TEST_NARROW_URL  IOP with `max_concurrency: 1` for both providers
IOP_TEST_ENGINES_URL IOP whose providers are the adapters `ollama` and `vllm`, one request at a time
IOP_TEST_ENGINES_ADMIN_URL  the admin listener of that IOP
IOP_TEST_OLLAMA_URL  the server with Ollama's API, without IOP
IOP_TEST_SMOL_URL    the provider with the real model, without IOP
IOP_TEST_MOCK_URL    the scripted provider, without IOP
"""

import os

import openai
import pytest

REAL = "smollm2"
MOCK = "mock-model"


def variable(name):
    url = os.environ.get(name)
    assert url, f"{name} is not set: run the tests through scripts/clients"
    return url


def client(url, **options):
    # Retries would hide faults; the time limit keeps a hanging answer from hanging the run.
    return openai.OpenAI(base_url=url + "/v1", api_key="unused", max_retries=0, timeout=120, **options)


@pytest.fixture(scope="session")
def real_url():
    return variable("IOP_TEST_URL") if not direct() else variable("IOP_TEST_SMOL_URL")


@pytest.fixture(scope="session")
def mock_url():
    return variable("IOP_TEST_URL") if not direct() else variable("IOP_TEST_MOCK_URL")


@pytest.fixture
def real(real_url):
    """A client of the real model."""
    with client(real_url) as made:
        yield made


@pytest.fixture
def mock(mock_url):
    """A client of the scripted provider."""
    with client(mock_url) as made:
        yield made


@pytest.fixture
def narrow():
    """A client of an IOP whose providers take one request at a time."""
    with client(variable("IOP_TEST_NARROW_URL")) as made:
        yield made


@pytest.fixture(scope="session")
def engines_url():
    return variable("IOP_TEST_ENGINES_URL")


@pytest.fixture
def engines(engines_url):
    """A client of an IOP in front of the real model by the adapters for engines."""
    with client(engines_url) as made:
        yield made


def direct():
    """Whether the tests talk to the providers themselves, to tell whose fault a failure is."""
    return os.environ.get("IOP_TEST_DIRECT") == "1"


def pytest_collection_modifyitems(items):
    if direct():
        skip = pytest.mark.skip(reason="needs IOP itself")
        for item in items:
            if item.get_closest_marker("iop"):
                item.add_marker(skip)


def prompt(text):
    return [{"role": "user", "content": text}]


def knobs(**wanted):
    """A prompt that tells the scripted provider how to answer (see bench/src/provider/knobs.rs)."""
    words = " ".join(f"{name}={value}" for name, value in wanted.items())
    return prompt(f"[[bench {words}]] hello")
